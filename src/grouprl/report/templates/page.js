// Theme, figures, browser: what starts when the page is there.

const THEMES = ["auto", "light", "dark"];

function themeSwitch() {
  const button = document.querySelector("[data-theme-switch]");
  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  let theme = "auto";
  try { theme = localStorage.getItem("grouprl-theme") || theme; } catch { /* a page from a file may have no storage */ }
  if (!THEMES.includes(theme)) theme = "auto";
  apply(theme);
  button.hidden = false;
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    apply(theme);
    try { localStorage.setItem("grouprl-theme", theme); } catch { /* then it holds for this visit */ }
  });
}

const page = { browser: null };

async function startBrowser() {
  const root = document.querySelector("[data-browser]");
  if (!root) return;
  try {
    const data = await unpack(document.querySelector("[data-groups]").textContent);
    page.browser = new Browser(root, data);
  } catch (error) {
    root.replaceChildren(make("p", { className: "absent" }, `The groups cannot be shown: ${error.message}.`));
  }
}

document.addEventListener("choose", (event) => {
  if (!page.browser) return;
  page.browser.set({ only: event.detail, filter: "all" });
  document.querySelector("#groups").scrollIntoView({ behavior: "smooth" });
});

let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  opened.forEach((one) => { one.open = true; });
});
window.addEventListener("afterprint", () => opened.forEach((one) => { one.open = false; }));
window.addEventListener("scroll", hideTip, { passive: true });

themeSwitch();
drawFigures(document);
startBrowser();

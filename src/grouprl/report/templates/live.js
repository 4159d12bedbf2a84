// Following a run: ask for the stamp of its files, and where that is another one take over the new page's parts.
// The server renders and escapes as for the page on its own; a parsed page's scripts do not run.

const POLL_MS = 2000;

function liveState(words, trouble = false) {
  const state = document.querySelector("[data-live-state]");
  if (state.textContent !== words) state.textContent = words;
  state.parentElement.classList.toggle("trouble", trouble);
}

async function takeOver() {
  const answer = await fetch("/", { cache: "no-store" });
  if (!answer.ok) throw new Error(await answer.text());
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const packed = fresh.querySelector("[data-groups]").textContent;
  const data = page.browser ? await unpack(packed) : null;
  for (const name of ["facts", "tiles", "notes", "findings", "evaluations", "figures"]) {
    const mine = document.querySelector(`[data-part="${name}"]`), theirs = fresh.querySelector(`[data-part="${name}"]`);
    if (mine.innerHTML === theirs.innerHTML) continue;
    const taken = document.importNode(theirs, true);
    mine.replaceWith(taken);
    if (name === "figures") drawFigures(taken);
  }
  if (data && fresh.querySelector("[data-browser]")) {
    document.querySelector("[data-held]").replaceWith(document.importNode(fresh.querySelector("[data-held]"), true));
    page.browser.renew(data);
  } else {
    page.browser = null;
    const part = document.importNode(fresh.querySelector('[data-part="groups"]'), true);
    document.querySelector('[data-part="groups"]').replaceWith(part);
    await startBrowser();
  }
  document.body.dataset.live = fresh.body.dataset.live;
}

async function follow() {
  try {
    const answer = await fetch("/stamp", { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    if (await answer.text() !== document.body.dataset.live) await takeOver();
    liveState("following");
  } catch (error) {
    liveState(error instanceof TypeError ? "grouprl watch has stopped; this is the last it showed" : error.message, true);
  }
  setTimeout(follow, POLL_MS);
}

setTimeout(follow, POLL_MS);

"""Estimators by name, with what they declare: scope, needs, laws, bound.

@advantages.register("centred", laws={"equal_is_zero", "zero_sum"})
def centred(rewards, group_ids=None, *, valid=None): ...
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, cast, overload

from torch import Tensor

from grouprl.advantages.inputs import Array, ArrayLike
from grouprl.advantages.ranks import spanning_ranks
from grouprl.errors import InputError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

SCOPES = ("group", "batch", "stateful", "token")
NEEDS = frozenset({"lengths", "values", "greedy_rewards", "max_reward", "components"})
LAWS = {
    "equal_is_zero": "a group without spread gets exactly 0",
    "single_is_zero": "a group of one gets exactly 0",
    "zero_sum": "a group's advantages sum to 0",
    "shift_invariant": "a constant added to every reward changes nothing",
    "scale_invariant": "A(c·R, c·eps) = A(R, eps)",
    "permutation_equivariant": "completions in another order get the same advantages, in that order",
    "batch_independent": "a group gets the same alone as in any batch",
    "bounded": "no advantage is larger than the declared bound",
    "finite": "never NaN or infinite",
    "unscored_absent": "an unscored completion gets 0, and its siblings do not notice",
}

P = ParamSpec("P")


class Function(Protocol[P]):
    """An estimator as it is called: arrays give arrays, tensors and lists give tensors.

    With a process_group it sees the completions of all its ranks, and gives this rank's part.
    """

    @overload
    def __call__(self, rewards: Array, *args: P.args, **keywords: P.kwargs) -> Array: ...
    @overload
    def __call__(self, rewards: Tensor | Sequence[Any], *args: P.args, **keywords: P.kwargs) -> Tensor: ...
    @overload
    def __call__(
        self, rewards: ArrayLike, *args: Any, process_group: ProcessGroup | None, **keywords: Any
    ) -> Any: ...


@dataclass(frozen=True, slots=True)
class Estimator:
    """A way from rewards to advantages, and what may be relied on.

    Args:
        name: As in `advantages.get(name)` and in a training configuration.
        function: `(rewards, group_ids=None, **keywords) → advantages`; for scope "stateful" what makes one.
        summary: One line.
        equation: The formula, in one or more lines.
        source: Paper and equation, or "ours".
        scope: What a completion's advantage depends on: its "group"; the "batch"; earlier calls too
            ("stateful"); or steps and tokens inside the completion ("token").
        needs: Which keywords beyond rewards and groups it looks at.
        laws: Names of the laws that hold, of `registry.LAWS`: `check_laws` checks them.
        bound: Largest |A| that n scored completions can give: n of the group, for scope "batch" of the batch,
            and tokens instead of completions where it needs lengths. None where there is none.
    """

    name: str
    function: Callable[..., Any]
    summary: str = ""
    equation: str = ""
    source: str = ""
    scope: str = "group"
    needs: frozenset[str] = field(default_factory=frozenset)
    laws: frozenset[str] = field(default_factory=frozenset)
    bound: Callable[[int], float] | None = None

    def __call__(self, rewards: ArrayLike, group_ids: ArrayLike | None = None, **keywords: Any) -> Any:
        """Advantages; a stateful estimator starts afresh: keep what `start` gives to keep its state."""
        if self.scope == "stateful":
            return self.function()(rewards, group_ids, **keywords)
        if self.scope == "token":
            return self.function(
                rewards, **({} if group_ids is None else {"group_ids": group_ids}), **keywords
            )
        return self.function(rewards, group_ids, **keywords)

    def start(self, **options: Any) -> Callable[..., Any]:
        """A function of (rewards, group_ids, **keywords) with these options; a stateful one has its own state."""
        return self.function(**options) if self.scope == "stateful" else partial(self.function, **options)

    def accepts(self, keyword: str) -> bool:
        """Whether its function takes this keyword."""
        call = self.function.__call__ if inspect.isclass(self.function) else self.function
        parameters = inspect.signature(call).parameters.values()
        return any(p.name == keyword or p.kind is p.VAR_KEYWORD for p in parameters)


_ESTIMATORS: dict[str, Estimator] = {}


def register(
    name: str,
    *,
    scope: str = "group",
    needs: Iterable[str] = (),
    per_completion: Iterable[str] = (),
    laws: Iterable[str] = (),
    bound: Callable[[int], float] | None = None,
    equation: str = "",
    source: str = "",
) -> Callable[[Callable[Concatenate[Any, P], Any]], Function[P]]:
    """Make a function an estimator that can be named, and give it the keyword `process_group`.

    A class (scope "stateful"), and a function that has that keyword, stays as it is.

    Args:
        name: An identifier that is not taken by another function; the same function may be registered again.
        scope: See `Estimator`.
        needs: See `Estimator`.
        per_completion: Its keywords with an entry for each completion, beyond valid and those that it can need.
            They are gathered over ranks; all others must be the same on every rank.
        laws: See `Estimator`.
        bound: See `Estimator`; "bounded" in laws asks for it.
        equation: See `Estimator`; without it the indented lines of the docstring.
        source: See `Estimator`; without it the docstring's "Source:".

    Raises:
        InputError: For a name that is none or is taken, an unknown scope, need or law, or a missing bound.

    Example:
        >>> from grouprl import advantages
        >>> @advantages.register("signs", laws={"equal_is_zero", "single_is_zero", "finite"})
        ... def signs(rewards, group_ids=None, *, valid=None):
        ...     '''+1 above the group's mean, −1 below it.'''
        ...     return advantages.dr_grpo(rewards, group_ids, valid=valid).sign()
        >>> advantages.get("signs")([1.0, 0.0, 0.0])
        tensor([ 1., -1., -1.])
        >>> advantages.check_laws("signs")
        >>> advantages.unregister("signs")

    Source: ours.
    """
    scope_, needs_, laws_ = scope, frozenset(needs), frozenset(laws)
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"register: name is {name!r}, expected a Python identifier; choose one")
    if scope not in SCOPES:
        raise InputError(f"register: scope is {scope!r}, expected one of {', '.join(SCOPES)}; choose one")
    _known("needs", needs_, NEEDS)
    _known("laws", laws_, frozenset(LAWS))
    if ("bounded" in laws_) != (bound is not None):
        raise InputError(
            f"register: laws {'hold' if bound is None else 'lack'} 'bounded' and bound is "
            f"{'missing' if bound is None else 'given'}, expected both or neither; pass bound=lambda n: …"
        )

    def decorate(function: Callable[Concatenate[Any, P], Any]) -> Function[P]:
        taken = _ESTIMATORS.get(name)
        if taken is not None and _identity(taken.function) != _identity(function):
            raise InputError(
                f"register: {name!r} is {_identity(taken.function)}, expected a name that is free; "
                "choose another name, or unregister it first"
            )
        function = spanning_ranks(name, function, frozenset(per_completion))
        doc = _Docstring.of(function)
        _ESTIMATORS[name] = Estimator(
            name=name,
            function=function,
            summary=doc.summary,
            equation=equation or doc.equation,
            source=source or doc.source or "ours",
            scope=scope_,
            needs=needs_,
            laws=laws_,
            bound=bound,
        )
        return cast("Function[P]", function)

    return decorate


def unregister(name: str) -> None:
    """Forget an estimator.

    Raises:
        InputError: For an unknown name.
    """
    del _ESTIMATORS[get(name).name]


def names() -> list[str]:
    """Names of all estimators, in the order of their registration.

    Example:
        >>> from grouprl import advantages
        >>> advantages.names()[:3]
        ['grpo', 'dr_grpo', 'rloo']
    """
    return list(_ESTIMATORS)


def get(name: str) -> Estimator:
    """The estimator of that name.

    Raises:
        InputError: For an unknown name, with the nearest ones.

    Example:
        >>> from grouprl import advantages
        >>> advantages.get("rloo")([1.0, 0.0])
        tensor([ 1., -1.])
    """
    if isinstance(name, str) and name in _ESTIMATORS:
        return _ESTIMATORS[name]
    near = difflib.get_close_matches(str(name), _ESTIMATORS, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "choose one of them"
    raise InputError(f"advantages.get: name is {name!r}, expected one of {', '.join(_ESTIMATORS)}; {hint}")


def describe(name: str) -> str:
    """What an estimator is, in a few lines of text.

    Raises:
        InputError: For an unknown name.

    Example:
        >>> from grouprl import advantages
        >>> print(advantages.describe("rloo"))
        rloo: each reward against the mean of the others in its group.
        <BLANKLINE>
            A_i = R_i − mean_{j≠i}(R_j) = n/(n−1) · (R_i − mean(R))
        <BLANKLINE>
        scope   group
        needs   nothing else
        bound   none
        laws    equal_is_zero            a group without spread gets exactly 0
                single_is_zero           a group of one gets exactly 0
                zero_sum                 a group's advantages sum to 0
                shift_invariant          a constant added to every reward changes nothing
                permutation_equivariant  completions in another order get the same advantages, in that order
                batch_independent        a group gets the same alone as in any batch
                finite                   never NaN or infinite
                unscored_absent          an unscored completion gets 0, and its siblings do not notice
        source  Back to Basics, https://arxiv.org/abs/2402.14740, section 2.2.
    """
    estimator = get(name)
    laws = [f"{law:<24} {meaning}" for law, meaning in LAWS.items() if law in estimator.laws]
    bound = "none"
    if estimator.bound is not None:
        bound = ", ".join(f"{estimator.bound(n):.4g} for n = {n}" for n in (4, 8, 16))
    summary = estimator.summary
    if summary[1:2].islower():  # a word, and no acronym
        summary = summary[0].lower() + summary[1:]
    equation = [f"    {line}" for line in estimator.equation.splitlines()]
    lines = [
        f"{name}: {summary or 'no description'}",
        *(["", *equation, ""] if equation else [""]),
        f"scope   {estimator.scope}",
        f"needs   {', '.join(sorted(estimator.needs)) or 'nothing else'}",
        f"bound   {bound}",
        *(f"{'laws' if i == 0 else '':<7} {law}" for i, law in enumerate(laws or ["none declared"])),
        f"source  {estimator.source}",
    ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Docstring:
    summary: str
    equation: str
    source: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> _Docstring:
        """First line; the indented lines before "Args:"; the paragraph "Source: …"."""
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        summary = " ".join(paragraphs[0].split())
        equation = ""
        for paragraph in paragraphs[1:]:
            if paragraph.startswith("Args:"):
                break
            if paragraph.startswith("    "):
                equation = inspect.cleandoc("\n" + paragraph)
                break
        sources = [p.removeprefix("Source:") for p in paragraphs if p.startswith("Source:")]
        return cls(summary, equation, " ".join(sources[-1].split()) if sources else "")


def _known(argument: str, given: frozenset[str], known: frozenset[str]) -> None:
    unknown = sorted(given - known)
    if unknown:
        raise InputError(
            f"register: {argument} holds {', '.join(map(repr, unknown))}, expected some of "
            f"{', '.join(sorted(known))}; correct the name"
        )


def _identity(function: Callable[..., Any]) -> str:
    """Where a function is defined: the same when its module is loaded again."""
    return f"{function.__module__}.{function.__qualname__}"

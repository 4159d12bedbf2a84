"""Completions of all ranks in one call: gather what each rank brings, compute on the whole, keep this rank's part.

Rewards and ids are tiny, so every rank computes the whole batch: the result has the bits of a single process, and a
function with a state of its own leaves the same state on every rank.

First every rank tells every other, in one exchange, what it brings or why it cannot. All then judge the same
facts, so that they go on together or raise the same error: none is left waiting. Lists and arrays (string ids) travel
in that first exchange, pickled, between this job's own ranks alone; tensors follow as bytes, on their device.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from grouprl.errors import InputError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Place = tuple[str, Any]
"""An input's name, and a key where it holds several."""


class Kind(NamedTuple):
    """What must be alike on all ranks for their parts to be put together."""

    name: str
    """ "tensor", "array" or "list"."""
    dtype: torch.dtype | str | None = None
    device: str = ""
    row: tuple[int, ...] = ()
    """Shape of one entry."""

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        row = f" with entries of shape {self.row}" if self.row else ""
        where = f" on {self.device}" if self.device else ""
        return self.name if self.name == "list" else f"{self.name} of {dtype}{row}{where}"


@dataclass(frozen=True, slots=True)
class Piece:
    """One input of one rank.

    Args:
        kind: See `Kind`.
        count: How many entries.
        data: The entries, those of a tensor as bytes; None for a tensor that is still on its way.
    """

    kind: Kind
    count: int
    data: Any

    @property
    def size(self) -> int:
        """Bytes of a tensor."""
        dtype = self.kind.dtype
        return self.count * math.prod(self.kind.row) * dtype.itemsize if isinstance(dtype, torch.dtype) else 0


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank brings.

    Args:
        count: Number of its completions.
        pieces: Its inputs, but for those that are None.
        options: What must be the same on every rank.
        problem: Why it brings nothing; "" otherwise.
    """

    count: int = 0
    pieces: Mapping[Place, Piece] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    problem: str = ""


def across_ranks(
    where: str,
    function: Callable[..., Any],
    process_group: ProcessGroup | None,
    inputs: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    several: Iterable[str] = (),
) -> Any:
    """`function(**inputs, **options)` on the completions of all ranks, in the order of the ranks; this rank's part.

    Args:
        where: Public name that an error message begins with.
        function: Gives a tensor, an array, or a dataclass of them, with an entry for each completion.
        process_group: Whose ranks. None: this process alone, and the plain call.
        inputs: One entry for each of this rank's completions, along the first axis: tensors, arrays, sequences, or
            None where not given. The first input says how many completions there are, which may be none.
        options: The other arguments, the same on every rank.
        several: Inputs that are a mapping or a sequence of such inputs.

    Raises:
        InputError: On every rank alike, where one rank's inputs cannot be read or do not fit the others'; on this rank
            alone, where it is in no such group. Besides, what the function raises, on every rank alike.

    A rank without completions has no say in the kinds and dtypes of the inputs. Its part is empty, of the others'
    dtype.
    """
    if process_group is None:
        return function(**inputs, **options)
    rank = _rank_in(where, process_group)
    own = _share(inputs, options, frozenset(several))
    shares = _exchange(own, process_group)
    _refuse_differing(where, shares)
    filled = [share for share in shares if share.count]
    if not filled:
        return function(**inputs, **options)
    whole = _whole(_gather_tensors(own, shares, process_group))
    result = function(**{**dict.fromkeys(inputs), **whole}, **options)
    start = sum(share.count for share in shares[:rank])
    return _part(where, result, start, own.count, sum(share.count for share in shares))


def _rank_in(where: str, process_group: Any) -> int:
    """This process's rank in the group."""
    if not dist.is_available() or not dist.is_initialized():
        raise InputError(
            f"{where}: process_group is given, expected torch.distributed to be initialised; call "
            "torch.distributed.init_process_group first, or leave process_group out"
        )
    if process_group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InputError(
            f"{where}: process_group is a group without this process, expected one of its own; call it on the "
            "group's members alone"
        )
    if not isinstance(process_group, dist.ProcessGroup):
        raise InputError(
            f"{where}: process_group is a {type(process_group).__name__}, expected a ProcessGroup; pass "
            "torch.distributed.group.WORLD, or what new_group gave"
        )
    return dist.get_rank(process_group)


# ---- what this rank brings ------------------------------------------------------------------------------


def _share(inputs: Mapping[str, Any], options: Mapping[str, Any], several: frozenset[str]) -> Share:
    """What this rank brings. Whatever goes wrong is for all ranks to know."""
    try:
        pieces = {place: _piece(place, x) for place, x in _places(inputs, several)}
        first = next(iter(inputs))
        if (first, None) not in pieces:
            raise InputError(
                f"{first} is None, expected a tensor, an array or a list; pass one, also an empty one"
            )
        count = pieces[first, None].count
        for place, piece in pieces.items():
            if piece.count != count:
                raise InputError(
                    f"{_name(place)} has {piece.count} entries, expected {count}, one for each entry of {first}; "
                    "pass each rank's own"
                )
        share = Share(count, pieces, dict(options))
        pickle.dumps(_without_tensors(share))
        return share
    except Exception as error:
        text = " ".join(str(error).split())
        return Share(
            problem=text
            if isinstance(error, InputError)
            else f"inputs cannot be sent ({text}), expected dense tensors, arrays, or lists that pickle; convert them"
        )


def _places(inputs: Mapping[str, Any], several: frozenset[str]) -> Iterable[tuple[Place, Any]]:
    for name, x in inputs.items():
        if name in several and x is not None:
            keyed = x if isinstance(x, Mapping) else dict(enumerate(x))
            yield from (((name, key), part) for key, part in keyed.items())
        elif x is not None:
            yield (name, None), x


def _piece(place: Place, x: Any) -> Piece:
    if isinstance(x, list | tuple) and x and isinstance(x[0], Tensor):
        x = torch.stack(list(x))
    if isinstance(x, Tensor):
        if x.layout != torch.strided or x.is_nested or x.is_quantized:
            raise InputError(
                f"{_name(place)} is not a dense tensor, expected one; pass to_dense() or dequantize()"
            )
        kind, shape = Kind("tensor", x.dtype, x.device.type, tuple(x.shape[1:])), tuple(x.shape)
        data: Any = _bytes(x)
    elif hasattr(x, "__array__"):
        data = np.ma.asarray(x) if isinstance(x, np.ma.MaskedArray) else np.asarray(x)
        numeric = data.dtype.kind in "biufc"
        kind = Kind("array", str(data.dtype) if numeric else "objects", "", data.shape[1:])
        shape = data.shape
    elif isinstance(x, Sequence) and not isinstance(x, str | bytes):
        kind, data, shape = Kind("list"), list(x), (len(x),)
    else:
        raise InputError(
            f"{_name(place)} is a {type(x).__name__}, expected an entry for each completion; pass a tensor, an array "
            "or a list"
        )
    if not shape:
        raise InputError(f"{_name(place)} is a single number, expected at least one axis; pass a 1-D tensor")
    return Piece(kind, int(shape[0]), data)


# ---- what all ranks bring -------------------------------------------------------------------------------


def _exchange(own: Share, process_group: ProcessGroup) -> list[Share]:
    """Every rank's share, tensors without their data."""
    shares: list[Any] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(shares, pickle.dumps(_without_tensors(own)), group=process_group)
    return [pickle.loads(share) for share in shares]  # noqa: S301  (written by this job's own ranks)


def _without_tensors(share: Share) -> Share:
    pieces = {
        place: dataclasses.replace(piece, data=None) if piece.kind.name == "tensor" else piece
        for place, piece in share.pieces.items()
    }
    return dataclasses.replace(share, pieces=pieces)


def _refuse_differing(where: str, shares: Sequence[Share]) -> None:
    """Refuse shares that do not make one batch: the same verdict on every rank."""
    for rank, share in enumerate(shares):
        if share.problem:
            raise InputError(f"{where}: on rank {rank} {share.problem}")
    for rank, share in enumerate(shares):
        for name in {**shares[0].options, **share.options}:
            a, b = shares[0].options.get(name), share.options.get(name)
            if not _same(a, b):
                raise InputError(
                    f"{where}: {name} is {a!r} on rank 0 and {b!r} on rank {rank}, expected the same on every rank; "
                    "pass the same, or declare with register(per_completion=…) what has an entry for each completion"
                )
    filled = [(rank, share) for rank, share in enumerate(shares) if share.count]
    for rank, share in filled:
        first, model = filled[0]
        for place in {**model.pieces, **share.pieces}:
            a, b = model.pieces.get(place), share.pieces.get(place)
            if a is None or b is None or a.kind != b.kind:
                raise InputError(
                    f"{where}: {_name(place)} is {_describe(a)} on rank {first} and {_describe(b)} on rank {rank}, "
                    "expected one kind, dtype and row length on all ranks; convert before the call"
                )


def _gather_tensors(
    own: Share, shares: Sequence[Share], process_group: ProcessGroup
) -> dict[Place, list[Piece]]:
    """Every input, as the pieces of the ranks that have completions; one collective for all tensors."""
    model = next(share for share in shares if share.count).pieces
    tensors = [place for place, piece in model.items() if piece.kind.name == "tensor"]
    pieces = {place: [share.pieces[place] for share in shares if share.count] for place in model}
    if not tensors:
        return pieces
    device = _carrier(process_group, model[tensors[0]].kind.device)
    sizes = [sum(share.pieces[place].size for place in tensors) if share.count else 0 for share in shares]
    mine = torch.zeros(max(1, *sizes), dtype=torch.uint8, device=device)
    start = 0
    for place in tensors if own.count else []:
        piece = own.pieces[place]
        mine[start : start + piece.size] = piece.data.to(device)
        start += piece.size
    received = [torch.empty_like(mine) for _ in shares]
    dist.all_gather(received, mine, group=process_group)
    starts = [0] * len(shares)
    for place in tensors:
        home = own.pieces[place].data.device if own.count else torch.device(model[place].kind.device)
        for i, (rank, piece) in enumerate((r, s.pieces[place]) for r, s in enumerate(shares) if s.count):
            data = received[rank][starts[rank] : starts[rank] + piece.size].to(home)
            starts[rank] += piece.size
            pieces[place][i] = dataclasses.replace(piece, data=data)
    return pieces


def _carrier(process_group: ProcessGroup, kind: str) -> torch.device:
    """Where tensors of a kind of device travel: there, if the group's backend does."""
    known = [part.split(":")[0] for part in dist.get_backend_config(process_group).split(",")]
    return torch.device(kind if kind in known else "cpu" if "cpu" in known else known[0])


def _whole(pieces: Mapping[Place, Sequence[Piece]]) -> dict[str, Any]:
    """Every input over all completions, in the kind in which it came."""
    inputs: dict[str, Any] = {}
    for (name, key), parts in pieces.items():
        kind, data = parts[0].kind, [part.data for part in parts]
        whole: Any
        if isinstance(kind.dtype, torch.dtype):
            whole = torch.cat(data).view(kind.dtype).reshape(sum(part.count for part in parts), *kind.row)
        elif kind.name == "array":
            masked = any(isinstance(part, np.ma.MaskedArray) for part in data)
            whole = np.ma.concatenate(data) if masked else np.concatenate(data)
        else:
            whole = list(chain.from_iterable(data))
        if key is None:
            inputs[name] = whole
        else:
            inputs.setdefault(name, {})[key] = whole
    return {name: _as_sequence(x) if isinstance(x, dict) else x for name, x in inputs.items()}


def _as_sequence(keyed: dict[Any, Any]) -> Any:
    """A list where the keys are the places in one."""
    return list(keyed.values()) if list(keyed) == list(range(len(keyed))) else keyed


def _part(where: str, result: Any, start: int, count: int, total: int) -> Any:
    """This rank's entries."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        fields = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
        return dataclasses.replace(
            result, **{name: _part(where, x, start, count, total) for name, x in fields.items()}
        )
    if len(result) != total:
        raise InputError(
            f"{where}: the estimator gave {len(result)} entries, expected {total}, one for each completion; "
            "correct the estimator"
        )
    part = result[start : start + count]
    return part.clone() if isinstance(part, Tensor) else part.copy() if isinstance(part, np.ndarray) else part


def _same(a: Any, b: Any) -> bool:
    """Equal, or pickled to the same bytes (NaN, arrays)."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bytes(a).cpu(), _bytes(b).cpu())
    try:
        return bool(a == b) or pickle.dumps(a) == pickle.dumps(b)
    except (RuntimeError, ValueError):  # the truth value of several elements
        return pickle.dumps(a) == pickle.dumps(b)


def _bytes(x: Tensor) -> Tensor:
    return x.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def _name(place: Place) -> str:
    name, key = place
    return name if key is None else f"{name}[{key!r}]"


def _describe(piece: Piece | None) -> str:
    return "missing" if piece is None else f"a {piece.kind}".replace("a array", "an array")

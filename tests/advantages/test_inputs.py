"""What may be handed in, in which kind the result comes back, and what is refused."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from grouprl import group_advantages, group_stats, grpo_group_advantages
from grouprl.errors import InputError
from grouprl.sampling import informative

WANT = [-1.224744871391589, 0.0, 1.224744871391589]


@pytest.mark.parametrize(
    ("given", "out"),
    [
        (np.float16, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.longdouble, np.float64),
        (">f4", np.float32),
        (">f8", np.float64),
        (np.int64, np.float64),
        (np.int8, np.float64),
        (np.uint64, np.float64),
    ],
)
def test_arrays_give_arrays(given, out):
    result = grpo_group_advantages(np.array([1, 2, 3], dtype=given), eps=0.0)
    assert isinstance(result, np.ndarray)
    assert result.dtype == out
    np.testing.assert_allclose(result, WANT, rtol=1e-6)


def test_boolean_array():
    assert grpo_group_advantages(np.array([True, False]), eps=0.0).tolist() == [1.0, -1.0]


def test_array_views_and_read_only_arrays():
    base = np.array([3.0, 0.0, 2.0, 0.0, 1.0])
    base.flags.writeable = False
    before = base.copy()
    np.testing.assert_allclose(grpo_group_advantages(base[::-2], eps=0.0), WANT)
    np.testing.assert_allclose(
        grpo_group_advantages(np.broadcast_to(base[:3:2], (2, 2)), eps=0.0), [[1, -1]] * 2
    )
    assert np.array_equal(base, before)


def test_object_and_masked_arrays():
    result = grpo_group_advantages(np.array([1, None, 3.0], dtype=object), eps=0.0)
    assert result.dtype == np.float64
    assert result.tolist() == [-1.0, 0.0, 1.0]
    masked = np.ma.masked_array([1.0, 99.0, 3.0], mask=[False, True, False])
    assert grpo_group_advantages(masked, eps=0.0).tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "rewards",
    [
        [1, 2, 3],
        (1.0, 2.0, 3.0),
        [Decimal(1), Fraction(2), 3],
        [np.float32(1), np.float32(2), np.float32(3)],
        [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0, requires_grad=True)],
        [10**300, 2 * 10**300, 3 * 10**300],
    ],
)
def test_sequences_give_default_dtype_tensors(rewards):
    result = grpo_group_advantages(rewards, eps=0.0)
    assert isinstance(result, torch.Tensor)
    assert result.dtype == torch.float32
    np.testing.assert_allclose(result.numpy(), WANT, rtol=1e-6, atol=1e-12)


def test_nested_sequences_with_gaps():
    result = grpo_group_advantages([[1.0, None, 3.0], [True, False, None]], eps=0.0)
    assert result.tolist() == [[-1.0, 0.0, 1.0], [1.0, -1.0, 0.0]]


def test_a_sequence_of_single_precision_numbers_has_its_tolerance():
    one, next_one = np.float32(1), np.nextafter(np.float32(1), np.float32(2))
    assert not grpo_group_advantages([one, next_one]).any()
    assert grpo_group_advantages([float(one), float(next_one)], eps=0.0).tolist() == [-1.0, 1.0]


@pytest.mark.parametrize(
    "valid", [[True, False, True], (1, 0, 1), np.array([1, 0, 1]), torch.tensor([1, 0, 1])]
)
def test_masks_of_any_kind(valid):
    for rewards in (torch.tensor([1.0, 9.0, 3.0]), np.array([1.0, 9.0, 3.0]), [1.0, 9.0, 3.0]):
        assert group_advantages(rewards, valid=valid, eps=0.0).tolist() == [-1.0, 0.0, 1.0]
        assert group_advantages(rewards, ["a"] * 3, valid=valid, eps=0.0).tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (torch.tensor(1.0), "rewards is a single number, expected at least one axis; pass a list"),
        (np.float64(1.0), "rewards is a single number"),
        (1.0, "rewards is a single number"),
        (torch.tensor([1j]), "rewards are complex64, expected real numbers"),
        (np.array([1j]), "rewards are complex128, expected real numbers"),
        ([1j], "rewards are complex128, expected real numbers"),
        ([[1.0, 2.0], [1.0]], "rewards cannot be read .* flat, with group_ids"),
        (["1.0", "2.0"], "rewards are <U3, expected numbers"),
        ([1.0, "2.0", None], "rewards"),
        ([1.0, object()], "rewards cannot be read"),
        ("12", "rewards is a str, expected numbers"),
        ({1.0, 2.0}, "rewards is a set, expected numbers"),
        (None, "rewards is a NoneType, expected numbers"),
        ([10**400], "rewards cannot be read"),
        ([torch.ones(2), torch.ones(3)], "cannot be stacked"),
    ],
)
@pytest.mark.parametrize("function", [group_advantages, group_stats, informative, grpo_group_advantages])
def test_unusable_rewards(function, rewards, message):
    with pytest.raises(InputError, match=f"^{function.__name__}: .*{message}") as error:
        function(rewards)
    assert "; " in str(error.value)


@pytest.mark.parametrize(
    ("valid", "message"),
    [
        ([True], r"valid has shape \(1,\), expected \(2,\)"),
        (torch.ones(1, 2, dtype=torch.bool), r"valid has shape \(1, 2\), expected \(2,\)"),
        (torch.ones(2), "valid is float32, expected True or False"),
        (["a", "b"], "valid cannot be read"),
        ([[True], [True, False]], "valid cannot be read"),
        ([True, None], "valid cannot be read"),
    ],
)
def test_unusable_masks(valid, message):
    with pytest.raises(InputError, match=f"^group_advantages: .*{message}"):
        group_advantages(torch.tensor([1.0, 2.0]), valid=valid)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bit_floats(dtype):
    rewards = torch.tensor([1.0, 2.0, 3.0]).to(dtype)
    np.testing.assert_allclose(group_advantages(rewards, [5, 5, 5], eps=0.0).numpy(), WANT, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda x: x.to_sparse(), "sparse_coo"),
        (lambda x: x.to_sparse_csr(), "sparse_csr"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), "quantised"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # torch's own notices about these kinds of tensors
def test_tensors_that_are_not_dense_are_refused(make, kind):
    dense = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(InputError, match=f"rewards is a {kind} tensor, expected a dense one"):
        group_advantages(make(dense))
    with pytest.raises(InputError, match="valid is a sparse_coo tensor"):
        group_advantages(dense, valid=(dense > 0).to_sparse())
    with pytest.raises(InputError, match="group_ids is a sparse_coo tensor"):
        group_advantages(dense[0], torch.tensor([0, 1]).to_sparse())

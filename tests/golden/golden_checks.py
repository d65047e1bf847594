"""Comparisons of logits and greedy tokens with an oracle's, shared by the golden tests."""

import numpy as np


def log_softmax(logits):
    """float64 log-probabilities of each row."""
    x = logits.astype(np.float64)
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def kl_divergence(oracle, ours):
    """KL(oracle || ours) in nats a row."""
    p, q = log_softmax(oracle), log_softmax(ours)
    return (np.exp(p) * (p - q)).sum(1)


def check_logits(oracle, ours, mean_kl=1e-9, margin=1e-3):
    """Mean KL at most mean_kl, and the same best token wherever the oracle's best leads by more than margin.

    Arithmetic that never rounds activations below float32 lands near 3e-12. The contract asks for 1e-6; a thousandth of it also
    catches what is merely imprecise."""
    assert (
        ours.dtype == np.float32 and ours.shape == oracle.shape
    ), f"{ours.dtype} {ours.shape}, expected float32 {oracle.shape}"
    assert np.isfinite(
        ours
    ).all(), f"first row that is not finite: {int(np.argmin(np.isfinite(ours).all(1)))}"
    kl = kl_divergence(oracle, ours)
    worst = int(kl.argmax())
    first = int(np.argmax(kl > 10 * mean_kl)) if (kl > 10 * mean_kl).any() else None
    largest = float(np.abs(oracle - ours).max())
    story = f"mean KL {kl.mean():.3g}, worst {kl[worst]:.3g} at row {worst}, first bad row {first}, largest difference {largest:.3g}"
    assert kl.mean() <= mean_kl, story
    ranked = np.sort(oracle, 1)
    clear = ranked[:, -1] - ranked[:, -2] > margin
    wrong = clear & (oracle.argmax(1) != ours.argmax(1))
    assert not wrong.any(), f"best token differs at rows {np.flatnonzero(wrong).tolist()}; {story}"


def first_difference(a, b):
    """Index of the first differing element, a missing one included; None if the lists are equal."""
    for i in range(max(len(a), len(b))):
        if i >= len(a) or i >= len(b) or a[i] != b[i]:
            return i
    return None


def check_greedy(token_ids, oracle, tie, count):
    """Equal tokens; a difference is forgiven only where the oracle's best two logits, there, are within tie."""
    at = first_difference(token_ids, oracle["token_ids"][:count])
    if at is not None:
        margin = oracle["margins"][at] if at < len(oracle["margins"]) else float("inf")
        expected = oracle["token_ids"][at : at + 1]
        assert (
            margin < tie
        ), f"token {at} is {token_ids[at : at + 1]}, the oracle's {expected} leads by {margin}"

"""Buffer sizes in bytes per rank, by the published formulas. All take plain integers and return bytes.

R ranks, E experts (copies included), ``local`` experts a rank, B tokens a rank (capacity), K experts a token, H hidden.
"""

from __future__ import annotations


def up(value: int, step: int) -> int:
    """``value`` rounded up to a multiple of ``step``."""
    return -(-value // step) * step


def cloudmatrix(
    ranks: int, tokens: int, k: int, local: int, dispatch_row: float, combine_row: float
) -> dict[str, float]:
    """Static windows of CloudMatrix384's fused operators: R x B min(K, local experts) messages for each of the two.

    Source: arXiv 2506.12708 v2. Its example: 320 ranks, 96 tokens, one expert a die: 225 MiB + 420 MiB.

    >>> {name: size / 2**20 for name, size in cloudmatrix(320, 96, 8, 1, 7680, 14336).items()}
    {'dispatch': 225.0, 'combine': 420.0}
    """
    most = ranks * tokens * min(k, local)
    return {"dispatch": most * dispatch_row, "combine": most * combine_row}


def cann_fullmesh(
    ranks: int, tokens: int, k: int, local: int, hidden: int, shared: int = 0, *, flags_in_block: bool
) -> dict[str, float]:
    """Windows of CANN's dispatch and combine V2 on A3, two halves of each.

    2 x (local B R slot + (K + shared) B A512(2H)), where a slot is A512(A32(2H) + 64), or with flags in each
    512 B block ceil((A32(2H) + 64) / 480) x 512. Source: CANN ops-transformer, moe_distribute_dispatch_v2.

    >>> round(sum(cann_fullmesh(256, 128, 8, 1, 7168, flags_in_block=True).values()) / 2**20)
    988
    """
    token = up(2 * hidden, 32) + 64
    slot = -(-token // 480) * 512 if flags_in_block else up(token, 512)
    return {
        "dispatch": 2.0 * local * tokens * ranks * slot,
        "combine": 2.0 * (k + shared) * tokens * up(2 * hidden, 512),
    }


def cann_a2_fullmesh(ranks: int, tokens: int, k: int, local: int, hidden: int) -> float:
    """Window of CANN's A2 full mesh: 2 x (B R min(local, K) H x 2 B + 2 MiB). Source: CANN ops-transformer."""
    return 2.0 * (tokens * ranks * min(local, k) * hidden * 2 + 2 * 2**20)


def on_demand(dispatch: float, combine: float, ranks: int, local: int) -> dict[str, float]:
    """Buffers placed on demand: the bytes that really come in the two operations, and a 32 B count record for each
    (rank, local expert).
    """
    return {"dispatch": dispatch, "combine": combine, "metadata": 32.0 * ranks * local}


def deepep_low_latency(tokens: int, hidden: int, experts: int) -> dict[str, float]:
    """RDMA buffer of DeepEP's low-latency kernels: two halves of send, receive and signalling areas.

    With d = 16 + max(2H, H + 4 H/128) and c = 4 H/128 + 2H:
    align128(2 [max(B d, E B c) + E B max(d, c) + align128(4 E)]). Source: the public buffer
    layout (csrc/config.hpp). ``experts`` counts redundant ones.

    >>> [round(sum(deepep_low_latency(t, 5120, 448).values()) / 2**30, 2) for t in (2048, 1856, 1840, 1536)]
    [35.55, 32.21, 31.94, 26.66]
    """
    scales = hidden // 128 * 4
    dispatch, combine = 16 + max(2 * hidden, hidden + scales), scales + 2 * hidden
    send = 2 * max(tokens * dispatch, experts * tokens * combine)
    receive = 2 * experts * tokens * max(dispatch, combine)
    signals = 2 * up(4 * experts, 128)
    padding = up(send + receive + signals, 128) - send - receive - signals
    return {"send": float(send), "receive": float(receive), "signals": float(signals + padding)}


def deepep_queues(sms: int, row: int, nearby: int, domains: int) -> dict[str, float]:
    """NVLink and RDMA buffer of DeepEP's high-throughput kernels: queues of each of sms / 2 channels.

    A channel has a queue of 288 rows from each of ``nearby`` ranks of the domain and, if there are several ``domains``,
    one of 128 rows to and one from each of them (those of its tuned configuration for EP16). A place in a queue holds a
    row of ``row`` [B], whence it came (8 B), and 128 each of expert numbers (8 B), weights and scales (4 B); on the NIC
    16 B more. Beside it are heads and tails. Source: csrc/config.hpp.

    >>> {name: round(size / 2**20) for name, size in deepep_queues(24, 14336, 8, 2).items()}
    {'nvlink': 432, 'rdma': 96}
    """
    channels, place = sms // 2, row + 8 + 128 * (8 + 4 + 4)
    nvlink = channels * nearby * (4 * (2 * domains + 3) + 288 * place)
    rdma = channels * domains * 2 * (4 * (2 * nearby + 2) + 128 * (place + 16)) if domains > 1 else 0
    return {"nvlink": float(up(nvlink, 128)), "rdma": float(up(rdma, 128))}

"""Ledger: the memory of one virtual device, as torch's caching allocator would report it."""

from __future__ import annotations

import torch

ROUND = 512
"""torch's allocator rounds each block up to a multiple of this [bytes] (kMinBlockSize)."""

SEGMENT = 2 * 2**20
"""What the allocator asks the device for is a multiple of this [bytes] (kSmallBuffer)."""


class Ledger:
    """What lies in the memory of one device.

    Parameters
    ----------
    index : int
        The device's number, for messages.
    capacity : float
        Its memory [bytes].

    Attributes
    ----------
    allocated, peak : int
        Bytes in tensors, now and at most.
    reserved, peak_reserved : int
        Bytes that the allocator would hold, now and at most: tensors and what it keeps for others.
    num_allocs, num_frees, num_ooms : int
        How often each happened.
    """

    def __init__(self, index: int, capacity: float) -> None:
        self.index, self.capacity = index, int(capacity)
        self.fraction = 1.0
        self.allocated = self.peak = self.reserved = self.peak_reserved = 0
        self.num_allocs = self.num_frees = self.num_ooms = 0
        self.total_allocated = self.total_freed = 0

    def take(self, nbytes: int) -> None:
        """Put a tensor of so many bytes, rounded already, onto the device.

        Raises
        ------
        torch.OutOfMemoryError
            If there is no room.
        """
        self.check(nbytes)
        self.allocated = after = self.allocated + nbytes
        self.num_allocs += 1
        self.total_allocated += nbytes
        if after > self.peak:
            self.peak = after
        if after > self.reserved:
            self.reserved = min(-(-after // SEGMENT) * SEGMENT, self.capacity)
            self.peak_reserved = max(self.peak_reserved, self.reserved)

    def check(self, nbytes: int) -> None:
        """See whether so many bytes have room.

        Raises
        ------
        torch.OutOfMemoryError
            If they have not.
        """
        if self.allocated + nbytes > self.capacity * self.fraction:
            self.num_ooms += 1
            raise torch.OutOfMemoryError(self._full(nbytes))

    def give(self, nbytes: int) -> None:
        """Take a tensor away again."""
        self.allocated -= nbytes
        self.num_frees += 1
        self.total_freed += nbytes

    def trim(self) -> None:
        """Hand back what is kept for later tensors: ``empty_cache``."""
        self.reserved = -(-self.allocated // SEGMENT) * SEGMENT

    def reset_peak(self) -> None:
        """Count the most from here on."""
        self.peak, self.peak_reserved = self.allocated, self.reserved

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self.capacity - self.reserved

    def _full(self, nbytes: int) -> str:
        return (
            f"CUDA out of memory. Tried to allocate {_size(nbytes)}. GPU {self.index} has a total "
            f"capacity of {_size(self.capacity)} of which {_size(self.capacity - self.allocated)} "
            f"is free. Of the allocated memory {_size(self.allocated)} is allocated by PyTorch."
        )


def rounded(nbytes: int) -> int:
    """Bytes that a tensor takes on a device."""
    return -(-nbytes // ROUND) * ROUND


class Block:
    """What a storage holds on a device; freed together with the storage, whose attribute it is.

    Attributes
    ----------
    place : int
        The device's number.
    device : torch.device
        The device.
    """

    __slots__ = ("_ledger", "device", "nbytes", "place")

    def __init__(self, ledger: Ledger, device: torch.device, nbytes: int) -> None:
        self.nbytes = 0
        self._ledger, self.device, self.place = ledger, device, ledger.index
        self.resize(nbytes)

    def resize(self, nbytes: int) -> None:
        """Hold so many bytes from now on.

        Raises
        ------
        torch.OutOfMemoryError
            If there is no room.
        """
        size = rounded(nbytes)
        if size != self.nbytes:
            if self.nbytes:
                self._ledger.give(self.nbytes)
                self.nbytes = 0
            if size:
                self._ledger.take(size)
            self.nbytes = size

    def __del__(self) -> None:
        if self.nbytes:
            self._ledger.give(self.nbytes)


def _size(nbytes: int) -> str:
    """As torch writes it in its message."""
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.2f} MiB"

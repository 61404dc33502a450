"""The C++ exception that a thread is ending the process for, whose text is what std::terminate prints.

torch_npu's watchdog throws what HCCL told it, and HCCL tells each error once: where the watchdog asked first,
the program's own exception lacks the text. Read through the C++ ABI of libstdc++, the same on x86-64 and on
aarch64 (Itanium C++ ABI; libsupc++'s cxxabi.h): no other way leads from an abort to its reason.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

_LENGTH = 4000
# Classes known to have std::exception as their first base, so that the second entry of their table of virtual
# functions behind the two destructors is what(): those of the standard library, and torch's c10::Error.
_EXCEPTIONS = re.compile(r"St\d+(?:\w*error|\w*exception|bad_\w+|invalid_argument|out_of_range)|N3c10\d+\w+E")
_WHAT = 2


class _ExceptionPtr(ctypes.Structure):
    """A std::exception_ptr, and so much behind it that it is returned in memory.

    So it is by the ABI, for its destructor, which a structure of C has none of; one of more than 16 bytes is
    returned in the same way on both kinds of processor.
    """

    _fields_ = (("object", ctypes.c_void_p), ("unused", ctypes.c_void_p * 3))


def exception_in_flight() -> str:
    """Return what() of the C++ exception that the calling thread handles; empty if none tells."""
    try:
        library: Any = ctypes.CDLL("libstdc++.so.6")
        type_of, current = library.__cxa_current_exception_type, library._ZSt17current_exceptionv
    except (OSError, AttributeError):  # another C++ library
        return ""
    type_of.restype, current.restype = ctypes.c_void_p, _ExceptionPtr
    kind = type_of()
    if not kind or not _EXCEPTIONS.fullmatch(_name(kind)):
        return ""
    exception = current().object  # with one reference more, which nobody gives back: the process ends
    if not exception:
        return ""
    what = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(_pointer(_pointer(exception), _WHAT))
    return (what(exception) or b"")[:_LENGTH].decode(errors="replace")


def _name(kind: int) -> str:
    """Return the mangled name in a std::type_info, which stands behind its table of virtual functions."""
    return ctypes.string_at(_pointer(kind, 1)).decode(errors="replace").removeprefix("*")


def _pointer(address: int, index: int = 0) -> int:
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))[index] or 0

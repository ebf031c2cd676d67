"""With this folder on PYTHONPATH, Python is as a process of GTK, Qt or R: numbers that C and C++
write and read as text are those of the locale that the environment names."""

import ctypes
import locale

locale.setlocale(locale.LC_ALL, "")
# std::locale::global(std::locale("")), for streams. An object is a pointer, and one that a function
# returns goes to its first argument.
library = ctypes.CDLL("libstdc++.so.6")
named, before = ctypes.c_void_p(), ctypes.c_void_p()
library._ZNSt6localeC1EPKc(ctypes.byref(named), b"")
library._ZNSt6locale6globalERKS_(ctypes.byref(before), ctypes.byref(named))

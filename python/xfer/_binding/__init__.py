"""The binding to the C library: its functions and structs, how it is found and loaded, and which thread may call it
when."""

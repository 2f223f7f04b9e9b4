"""The C library as Python sees it: its functions and structs, how it is found and loaded, who may call it and when."""

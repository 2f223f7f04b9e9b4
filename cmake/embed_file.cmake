# cmake -DOUT=FILE.c -DFILE=page.html -DNAME=page_html -P embed_file.cmake: a file as a string of C.
file(READ ${FILE} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "/* Made by cmake/embed_file.cmake of ${NAME}. */\nextern const char ${NAME}[];\nconst char ${NAME}[] = {\n${bytes}0};\n")

# A manual page of our programs (tools/common/args_print.c) as Markdown: sed -E -f manual.sed PROGRAM.1
/^\.SH SEE ALSO/,$d
/^\.TP$/{
  N
  N
}
/^\.nf/,/^\.fi/!s/[*<_[|]/\\&/g
s/\\-/-/g
s/\\e/\\/g
s/\\\(aq/'/g
s/\\fI([^\n]*)\\fR/*\1*/g
s/^\.TP\n\.B ([^ \n]*)(.*)\n(.*)/**\1**\2\n: \3\n/
s/^\.TP\n(.*)\n(.*)/\1\n: \2\n/
s/^\.TH (\S+).*/# \1/
s/^\.SH (\S)(.*)/\n## \1\L\2\n/
s/^\.SS (.*)/\n### \1\n/
s/^\.B (\S+)/**\1**/
s/^\.nf$/```text/
s/^\.fi$/```/

/* Lines that do not parse, what is said of each, and with which status. */
#ifndef TEST_PROBLEM_ERRORS_H
#define TEST_PROBLEM_ERRORS_H

#include <xfer/xfer.h>

typedef struct bad_line {
  const char *line;
  const char *text;
  xfer_status st;
} bad_line;

/* clang-format off */
static const bad_line bad_lines[] = {

    /* dtype and shape */
    {"", "column 1: expected a dtype and '['", XFER_ERR_ARG},
    {"f32", "column 1: expected a dtype and '['", XFER_ERR_ARG},
    {"f33[4] (1):R -> (1):R", "column 1: expected a dtype such as bf16, f32 or f8e4m3 before '['", XFER_ERR_ARG},
    {"bfloat16[4] (1):R -> (1):R", "column 1: expected a dtype such as bf16, f32 or f8e4m3 before '['", XFER_ERR_ARG},
    {"[4] (1):R -> (1):R", "column 1: expected a dtype such as bf16, f32 or f8e4m3 before '['", XFER_ERR_ARG},
    {" f32[4] (1):R -> (1):R", "column 1: expected a dtype such as bf16, f32 or f8e4m3 before '['", XFER_ERR_ARG},
    {"F32[4] (1):R -> (1):R", "column 1: expected a dtype such as bf16, f32 or f8e4m3 before '['", XFER_ERR_ARG},
    {"f32[-4] (1):R -> (1):R", "column 5: expected a digit after '['", XFER_ERR_ARG},
    {"f32[4,] (1):R -> (1):R", "column 7: expected a digit after ','", XFER_ERR_ARG},
    {"f32[4 5] (1):R -> (1):R", "column 6: expected a digit, ',' or ']'", XFER_ERR_ARG},
    {"f32[4", "column 6: expected a digit, ',' or ']'", XFER_ERR_ARG},
    {"f32[9223372036854775808] (1):R -> (1):R", "column 5: a number above 9223372036854775807", XFER_ERR_ARG},
    {"f32[99999999999999999999999] (1):R -> (1):R", "column 5: a number above 9223372036854775807", XFER_ERR_ARG},
    {"f32[1,2,3,4,5,6,7,8,9] (1):R -> (1):R", "column 21: a tensor of more than 8 dims", XFER_ERR_ARG},
    {"f32[4](1):R -> (1):R", "column 7: expected one blank after ']'", XFER_ERR_ARG},

    /* mesh */
    {"f32[4] 1:R -> (1):R", "column 8: expected '(' or '{'", XFER_ERR_ARG},
    {"f32[4]  (1):R -> (1):R", "column 8: expected '(' or '{'", XFER_ERR_ARG},
    {"f32[4] ():R -> (1):R", "column 9: expected a digit after '('", XFER_ERR_ARG},
    {"f32[4] (2,):R -> (1):R", "column 11: expected a digit after ','", XFER_ERR_ARG},
    {"f32[4] (2,0):R -> (1):R", "column 11: a mesh axis of size 0", XFER_ERR_ARG},
    {"f32[4] (2:R -> (1):R", "column 10: expected a digit, ',' or ')'", XFER_ERR_ARG},
    {"f32[4] (2147483648):R -> (1):R", "column 9: a number above 2147483647", XFER_ERR_ARG},
    {"f32[4] (65536,32768):R,R -> (1):R", "column 8: a mesh of more than 16777216 ranks", XFER_ERR_OVERFLOW},
    {"f32[4] (1,1,1,1,1,1,1,1,1):R -> (1):R", "column 25: a mesh of more than 8 axes", XFER_ERR_ARG},

    /* ranks */
    {"f32[4] (2)@:R -> (1):R", "column 12: expected a digit after '@'", XFER_ERR_ARG},
    {"f32[4] (2)@0,:R -> (1):R", "column 14: expected a digit after ','", XFER_ERR_ARG},
    {"f32[4] (2)@0-:R -> (1):R", "column 14: expected a digit after '-'", XFER_ERR_ARG},
    {"f32[4] (2)@0-1/:R -> (1):R", "column 16: expected a digit after '/'", XFER_ERR_ARG},
    {"f32[4] (2)@0-1/0:R -> (1):R", "column 16: a step of 0", XFER_ERR_ARG},
    {"f32[4] (2)@3-2:R -> (1):R", "column 14: a range from 3 down to 2", XFER_ERR_ARG},
    {"f32[4] (2)@99999999999999999999:R -> (1):R", "column 12: a number above 9223372036854775807", XFER_ERR_ARG},
    {"f32[4] (2)@2147483646-2147483647:R -> (1):R", "column 12: rank 2147483646 is above 16777215", XFER_ERR_OVERFLOW},
    {"f32[4] (2)@16777215-16777216:R -> (1):R", "column 21: rank 16777216 is above 16777215", XFER_ERR_OVERFLOW},
    {"f32[4] (1):R -> {16777216=}", "column 18: rank 16777216 is above 16777215", XFER_ERR_OVERFLOW},
    {"f32[4] (2)@0,1-2:R -> (1):R", "column 14: more ranks than the mesh's 2", XFER_ERR_ARG},
    {"f32[4] (2)@0-16777215:R -> (1):R", "column 12: more ranks than the mesh's 2", XFER_ERR_ARG},
    {"f32[4] (4)@0-2:R -> (1):R", "column 15: 3 ranks for a mesh of 4; expected ',' and a rank", XFER_ERR_ARG},
    {"f32[4] (2)@1,1:R -> (1):R", "rank 1 is in the mesh twice", XFER_ERR_ARG},

    /* placements */
    {"f32[4] (2)R -> (1):R", "column 11: expected '@' or ':'", XFER_ERR_ARG},
    {"f32[4] (2)@0-1 -> (1):R", "column 15: expected ':'", XFER_ERR_ARG},
    {"f32[4] (2):X -> (1):R", "column 12: expected 'R' or 'S'", XFER_ERR_ARG},
    {"f32[4] (2):S -> (1):R", "column 13: expected a digit after 'S'", XFER_ERR_ARG},
    {"f32[4] (2):S- -> (1):R", "column 14: expected a digit after '-'", XFER_ERR_ARG},
    {"f32[4] (2):S1 -> (1):R", "column 13: no such dim, the tensor has 1", XFER_ERR_ARG},
    {"f32[4] (2):S-2 -> (1):R", "column 13: no such dim, the tensor has 1", XFER_ERR_ARG},
    {"f32[4] (2):S-0 -> (1):R", "column 13: no such dim, the tensor has 1", XFER_ERR_ARG},
    {"f32[] (2):S0 -> (1):R", "column 12: no such dim, the tensor has 0", XFER_ERR_ARG},
    {"f32[4] (2):S0c -> (1):R", "column 14: expected ';', ' -> ' or the end of the line", XFER_ERR_ARG},
    {"f32[4] (2):S0f -> (1):R", "column 15: expected a digit after 'f'", XFER_ERR_ARG},
    {"f32[4] (2):S0f0 -> (1):R", "column 15: a split factor of 0", XFER_ERR_ARG},
    {"f32[4] (2,2):R -> (1):R", "column 15: expected ',' and a placement for axis 1 of 2", XFER_ERR_ARG},
    {"f32[4] (2):R,S0 -> (1):R", "column 13: more placements than mesh axes, 1", XFER_ERR_ARG},
    {"f32[5] (2):S0e -> (1):R", "dim 0: EVEN split of 5 indices over the 2 coordinates of axis 0", XFER_ERR_SHAPE},

    /* options */
    {"f32[4] (2):S0; -> (1):R", "column 15: expected 'order=' or 'pad='", XFER_ERR_ARG},
    {"f32[4] (2):S0;order -> (1):R", "column 15: expected 'order=' or 'pad='", XFER_ERR_ARG},
    {"f32[4] (2):S0;order= -> (1):R", "column 21: expected a digit after 'order='", XFER_ERR_ARG},
    {"f32[4] (2,2):S0,R;order=0 -> (1):R", "column 26: expected ',' and an axis: the order lists all 2", XFER_ERR_ARG},
    {"f32[4] (2,2):S0,R;order=0, -> (1):R", "column 27: expected a digit after ','", XFER_ERR_ARG},
    {"f32[4] (2,2):S0,R;order=0,0 -> (1):R", "column 27: expected an axis below 2 that is not listed yet", XFER_ERR_ARG},
    {"f32[4] (2,2):S0,R;order=2,0 -> (1):R", "column 25: expected an axis below 2 that is not listed yet", XFER_ERR_ARG},
    {"f32[4] (1):S0;order=0,1 -> (1):R", "column 22: expected ';', ' -> ' or the end of the line", XFER_ERR_ARG},
    {"f32[4] (1):S0;order=0;order=0 -> (1):R", "column 29: a second order", XFER_ERR_ARG},
    {"f32[4] (1):S0;pad= -> (1):R", "column 19: expected a digit after 'pad='", XFER_ERR_ARG},
    {"f32[4] (1):S0;pad=1:8 -> (1):R", "column 19: no such dim, the tensor has 1", XFER_ERR_ARG},
    {"f32[4] (1):S0;pad=0 -> (1):R", "column 20: expected ':' and the padded size", XFER_ERR_ARG},
    {"f32[4] (1):S0;pad=0: -> (1):R", "column 21: expected a digit after ':'", XFER_ERR_ARG},
    {"f32[4] (1):S0;pad=0:3 -> (1):R", "column 21: dim 0 of size 4 is padded to 3", XFER_ERR_ARG},
    {"f32[4] (1):S0;pad=0:8;pad=-1:8 -> (1):R", "column 27: dim 0 is padded twice", XFER_ERR_ARG},

    /* boxes */
    {"f32[4] {} -> (1):R", "column 9: expected a digit after '{'", XFER_ERR_ARG},
    {"f32[4] {0} -> (1):R", "column 10: expected '=' and the rank's boxes", XFER_ERR_ARG},
    {"f32[4] {0=[x:4]} -> (1):R", "column 12: expected a digit after '['", XFER_ERR_ARG},
    {"f32[4] {0=[0:x]} -> (1):R", "column 14: expected a digit after ':'", XFER_ERR_ARG},
    {"f32[4] {0=fx:4} -> (1):R", "column 12: expected a digit after 'f'", XFER_ERR_ARG},
    {"f32[4] {0=f0:x} -> (1):R", "column 14: expected a digit after ':'", XFER_ERR_ARG},
    {"f32[4] {0=[0:4} -> (1):R", "column 15: expected ']'", XFER_ERR_ARG},
    {"f32[4] {0=[0-4]} -> (1):R", "column 13: expected ':' and the end of the interval", XFER_ERR_ARG},
    {"f32[4] {0=[4:0]} -> (1):R", "column 12: an interval that ends before it begins", XFER_ERR_ARG},
    {"f32[4,2] {0=[0:4]} -> (1):R", "column 17: expected ',' and dim 1 of 2", XFER_ERR_ARG},
    {"f32[4] {0=[0:4]+} -> (1):R", "column 17: expected '[' and a box", XFER_ERR_ARG},
    {"f32[4] {0=[0:4],[0:4]} -> (1):R", "column 16: expected '+', ';' or '}'", XFER_ERR_ARG},
    {"f32[4] {0=f0} -> (1):R", "column 13: expected ':' and the end of the range", XFER_ERR_ARG},
    {"f32[4] {0=f2:1} -> (1):R", "a flat range from 2 to 1; want 0 <= begin <= end < 2^62", XFER_ERR_SHAPE},
    {"f32[4] {0=[0:4];0=} -> (1):R", "rank 0 is in the mesh twice", XFER_ERR_ARG},
    {"f32[] {0=[]+[]} -> (1):R", "rank 0 has 2 boxes of a scalar; 0 or 1 are possible", XFER_ERR_UNSUPPORTED},

    /* between and after the sides; what the layout says */
    {"f32[4] (1):R", "column 13: expected ' -> '", XFER_ERR_ARG},
    {"f32[4] (1):R  -> (1):R", "column 13: expected ' -> '", XFER_ERR_ARG},
    {"f32[4] (1):R -> ", "column 17: expected '(' or '{'", XFER_ERR_ARG},
    {"f32[4] (1):R -> bf16", "column 17: expected '(' or '{'", XFER_ERR_ARG},
    {"f32[4] (1):R -> 16 (1):R", "column 17: expected '(' or '{'", XFER_ERR_ARG},
    {"f32[4] (1):R -> float32 (1):R", "column 17: expected '(' or '{', or a dtype and a blank", XFER_ERR_ARG},
    {"f32[4] (1):R -> float32_t (1):R", "column 17: expected '(' or '{', or a dtype and a blank", XFER_ERR_ARG},
    {"f32[4] (1):R -> (1):R ", "column 22: expected the end of the line", XFER_ERR_ARG},
    {"f32[4] (1):R -> (1):R -> (1):R", "column 22: expected the end of the line", XFER_ERR_ARG},
    {"f32[4] (1):R -> (1):R\n", "column 22: expected ';', ' -> ' or the end of the line", XFER_ERR_ARG},
    {"f64[4,6] {0=[0:4611686018427387903,0:1]} -> (1):R", "the boxes of rank 0 up to box 0: their bytes do not fit in 62 bits", XFER_ERR_OVERFLOW},
    {"f32[4611686018427387904,4] (1):R -> (1):R", "a tensor of 2 dims whose bytes do not fit in 62 bits", XFER_ERR_OVERFLOW},
};
/* clang-format on */

#endif

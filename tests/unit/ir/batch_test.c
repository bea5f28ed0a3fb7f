/* Which axis counts rows, and whether rows affect each other: batch_of over functions of 4 rows. Only %x has rows. The
 * answers are compared with the interpreter: changing a row of %x may change only that row of the result. */
#include "tests/unit/ir/sample_case.h"

#define BODY                                                                            \
	"func @step(%i: s64[], %h: f32[4], %v: f32[4]) -> (bool[], f32[4], f32[4]) {\n" \
	"  %go = constant {value = bool[] [true]} : bool[]\n"                           \
	"  %a = add %h, %v : f32[4]\n  return %go, %a, %a\n}\n"
#define UNTIL                                                                             \
	"func @step(%i: s64[], %h: f32[4], %v: f32[4]) -> (bool[], f32[4], f32[4]) {\n"   \
	"  %a = add %h, %v : f32[4]\n  %s = reduce %a {kind = sum, axes = [0]} : f32[]\n" \
	"  %t = constant {value = f32[] [0.1]} : f32[]\n  %go = lt %s, %t : bool[]\n"     \
	"  return %go, %a, %a\n}\n"
#define BRANCHES                                                    \
	"func @plain(%v: f32[4,4]) -> f32[4,4] {\n  return %v\n}\n" \
	"func @turned(%v: f32[4,4]) -> f32[4,4] {\n"                \
	"  %t = transpose %v {order = [1,0]} : f32[4,4]\n  return %t\n}\n"

#define ROW_PLACES                                                    \
	"  %i = iota {dtype = s64, shape = [4], axis = 0} : s64[4]\n" \
	"  %four = constant {value = s64[4] [4, 4, 4, 4]} : s64[4]\n" \
	"  %at = mul %i, %four : s64[4]\n"                            \
	"  %k = constant {value = s64[4] [3, 0, 2, 3]} : s64[4]\n"    \
	"  %p = add %at, %k : s64[4]\n"

#define DATA_INDEX                                                    \
	"  %u = reduce %x {kind = sum, axes = [1]} : f32[4]\n"        \
	"  %d = cast %u {to = s64} : s64[4]\n"                        \
	"  %zero = constant {value = s64[4] [0, 0, 0, 0]} : s64[4]\n" \
	"  %one = constant {value = s64[4] [1, 1, 1, 1]} : s64[4]\n"  \
	"  %three = constant {value = s64[4] [3, 3, 3, 3]} : s64[4]\n"

#define OUTSIDE                                                                  \
	"  %below = lt %d, %zero : bool[4]\n  %above = ge %d, %four : bool[4]\n" \
	"  %o = or %below, %above : bool[4]\n"                                   \
	"  %all = constant {value = s64[4] [16, 16, 16, 16]} : s64[4]\n"         \
	"  %twelve = constant {value = s64[4] [12, 12, 12, 12]} : s64[4]\n"

#define GRID_PLACES                                                       \
	"  %i = iota {dtype = s64, shape = [4,4], axis = 0} : s64[4,4]\n" \
	"  %cols = iota {dtype = s64, shape = [4], axis = 0} : s64[4]\n"  \
	"  %j = broadcast %cols {shape = [4,4], axes = [1]} : s64[4,4]\n" \
	"  %four = constant {value = s64[] [4]} : s64[]\n"                \
	"  %b4 = broadcast %four {shape = [4,4], axes = []} : s64[4,4]\n" \
	"  %at = mul %i, %b4 : s64[4,4]\n  %p = add %at, %j : s64[4,4]\n"

#define GRID_TWOS                                                         \
	"  %n0 = constant {value = s64[] [0]} : s64[]\n"                  \
	"  %zero = broadcast %n0 {shape = [4,4], axes = []} : s64[4,4]\n" \
	"  %n2 = constant {value = s64[] [2]} : s64[]\n"                  \
	"  %two = broadcast %n2 {shape = [4,4], axes = []} : s64[4,4]\n"

#define CHOICE                                                 \
	"  %u = reduce %x {kind = sum, axes = [1]} : f32[4]\n" \
	"  %h = constant {value = f32[4] [0, 0, 0, 0]} : f32[4]\n  %c = gt %u, %h : bool[4]\n"

enum { NONE = -1 };
static const struct {
	const char *functions, *x; /* type of x */
	const char *body, *type;   /* definition and type of %r */
	int axis, repeats;         /* expected answer for %r */
	bool mixed;
} cases[] = {
	{"", "4,4] is input 0 rows", "%r = dot %x, %w {x_contract = [1], y_contract = [0]}", "4,4",
         0, 1},
	{"", "4,4] is input 0 rows", "%r = dot %w, %x {x_contract = [0], y_contract = [1]}", "4,4",
         1, 1},
	{"", "4,4] is input 0 rows", "%r = transpose %x {order = [1,0]}", "4,4", 1, 1},
	{"", "4,4] is input 0 rows 1", "%r = transpose %x {order = [1,0]}", "4,4", 0, 1},
	{"", "4,4] is input 0 rows", "%r = add %x, %w", "4,4", 0, 1},
	{"", "4,4] is input 0 rows", "%r = neg %w", "4,4", NONE, 0},
	/* merged and split axes */
	{"", "4,4] is input 0 rows", "%r = reshape %x {shape = [2,2,4]}", "2,2,4", NONE, 0, true},
	{"", "4,4] is input 0 rows", "%r = reshape %x {shape = [16]}", "16", 0, 1},
	{"", "3,4,2] is input 0 rows 1", "%r = reshape %x {shape = [12,2]}", "12,2", 0, 3},
	{"", "3,4,2] is input 0 rows 1", "%r = reshape %x {shape = [3,8]}", "3,8", 1, 1},
	{"", "3,4,2] is input 0 rows 1",
         "%a = reshape %x {shape = [24]} : f32[24]\n  %r = reshape %a {shape = [3,4,1,2]}",
         "3,4,1,2", 1, 1},
	{"", "3,4,2] is input 0 rows 1",
         "%a = reshape %x {shape = [12,2]} : f32[12,2]\n  %b = neg %a : f32[12,2]\n"
         "  %r = reduce %b {kind = sum, axes = [1]}",
         "12", 0, 3},
	{"", "3,4,2] is input 0 rows 1",
         "%a = reshape %x {shape = [12,2]} : f32[12,2]\n  %r = slice %a {start = [4,0], stop = [12,2], step = [1,1]}",
         "8,2", 0, 2},
	{"", "3,4,2] is input 0 rows 1",
         "%a = reshape %x {shape = [12,2]} : f32[12,2]\n  %r = slice %a {start = [3,0], stop = [11,2], step = [1,1]}",
         "8,2", NONE, 0, true},
	{"", "4,4] is input 0 rows", "%r = concat %x, %x {axis = 0}", "8,4", 0, 2},
	{"", "4,4] is input 0 rows", "%r = concat %x, %w {axis = 0}", "8,4", NONE, 0, true},
	{"", "4,4] is input 0 rows", "%r = concat %x, %w {axis = 1}", "4,8", 0, 1},
	{"", "4,4] is input 0 rows", "%r = slice %x {start = [1,0], stop = [3,4], step = [1,1]}",
         "2,4", NONE, 0, true},
	/* sums */
	{"", "4,4] is input 0 rows", "%r = reduce %x {kind = sum, axes = [1]}", "4", 0, 1},
	{"", "4,4] is input 0 rows", "%r = reduce %x {kind = sum, axes = [0]}", "4", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%a = reduce %x {kind = sum, axes = [0]} : f32[4]\n  %b = broadcast %a {shape = [4,4], axes = [1]} : f32[4,4]\n"
         "  %r = sub %x, %b",
         "4,4", 0, 1, true},
	{"", "4,4] is input 0 rows", "%r = dot %x, %x {x_contract = [1], y_contract = [1]}", "4,4",
         0, 1, true},
	{"", "4,4] is input 0 rows", "%r = dot %x, %x {x_contract = [0], y_contract = [0]}", "4,4",
         NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%a = dot %x, %x {x_contract = [1], y_contract = [1]} : f32[4,4]\n"
         "  %r = dot %a, %x {x_contract = [1], y_contract = [0]}",
         "4,4", 0, 1, true},
	{"", "4,4] is input 0 rows",
         "%t = transpose %x {order = [1,0]} : f32[4,4]\n  %r = add %x, %t", "4,4", 0, 1, true},
	{"", "4,4] is input 0 rows", "%r = cumulate %x {kind = sum, axis = 0}", "4,4", NONE, 0,
         true},
	{"", "4,4] is input 0 rows", "%r = cumulate %x {kind = sum, axis = 1}", "4,4", 0, 1},
	/* flat indices: %k is each row's own index, below 4; one more is the next row's index at the end of a row */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES "  %r = gather %f, %p {axis = 0}",
         "4", 0, 1},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES
         "  %one = constant {value = s64[4] [1, 1, 1, 1]} : s64[4]\n"
         "  %q = add %p, %one : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n"
         "  %p = constant {value = s64[4,2] [1, 2, 4, 7, 8, 8, 13, 15]} : s64[4,2]\n"
         "  %r = gather %f, %p {axis = 0}",
         "4,2", 0, 1},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n"
         "  %p = constant {value = s64[4,2] [1, 2, 4, 8, 8, 8, 13, 15]} : s64[4,2]\n"
         "  %r = gather %f, %p {axis = 0}",
         "4,2", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES
         "  %u = reduce %x {kind = sum, axes = [1]} : f32[4]\n"
         "  %s = scatter %f, %p, %u {kind = set, axis = 0} : f32[16]\n"
         "  %r = reshape %s {shape = [4,4]}",
         "4,4", 0, 1},
	/* indices beyond 64 bits: factors of 2^90 and 2^64; sums; a constant minus the row's index; 2^58 elements; then a
	 * factor of 2^31 */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES
         "  %m = constant {value = s64[4] [1073741824, 1073741824, 1073741824, 1073741824]} : s64[4]\n"
         "  %a = mul %i, %m : s64[4]\n  %b = mul %a, %m : s64[4]\n  %c = mul %b, %m : s64[4]\n"
         "  %q = add %p, %c : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES
         "  %m = constant {value = s64[4] [1073741824, 1073741824, 1073741824, 1073741824]} : s64[4]\n"
         "  %a = mul %i, %m : s64[4]\n  %b = mul %a, %m : s64[4]\n  %c = mul %b, %four : s64[4]\n"
         "  %d = mul %c, %four : s64[4]\n  %q = add %p, %d : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES
         "  %m = constant {value = s64[4] [0, 4611686018427387904, 0, 0]} : s64[4]\n"
         "  %a = add %m, %m : s64[4]\n  %b = add %a, %a : s64[4]\n"
         "  %q = add %p, %b : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n"
         "  %p = constant {value = s64[4] [0, -9223372036854775808, 8, 12]} : s64[4]\n"
         "  %r = gather %f, %p {axis = 0}",
         "4", NONE, 0, true},
	{"", "4,72057594037927936] is input 0 rows",
         "%f = reshape %x {shape = [288230376151711744]} : f32[288230376151711744]\n"
         "  %i = iota {dtype = s64, shape = [288230376151711744], axis = 0} : s64[288230376151711744]\n"
         "  %k = constant {value = s64[] [1073741824]} : s64[]\n"
         "  %m = broadcast %k {shape = [288230376151711744], axes = []} : s64[288230376151711744]\n"
         "  %q = mul %i, %m : s64[288230376151711744]\n  %r = gather %f, %q {axis = 0}",
         "288230376151711744", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES
         "  %m = constant {value = s64[4] [2147483648, 2147483648, 2147483648, 2147483648]} : s64[4]\n"
         "  %a = mul %i, %m : s64[4]\n  %q = add %p, %a : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", NONE, 0, true},
	/* row * 4 + k - row; one of two indices, chosen by data; negative indices */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES
         "  %m = neg %i : s64[4]\n  %q = add %p, %m : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES CHOICE
         "  %q = add %p, %four : s64[4]\n  %s = select %c, %q, %p : s64[4]\n"
         "  %r = gather %f, %s {axis = 0}",
         "4", 0, 1, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES
         "  %z = constant {value = s64[4] [0, 0, 0, 0]} : s64[4]\n  %c = lt %p, %z : bool[4]\n"
         "  %e = constant {value = s64[4] [16, 16, 16, 16]} : s64[4]\n"
         "  %q = add %p, %e : s64[4]\n  %s = select %c, %q, %p : s64[4]\n"
         "  %r = gather %f, %s {axis = 0}",
         "4", 0, 1},
	/* row * 4 + j of [4,4]: minus j * 2, minus 4; -j and j * j instead of j; column * 4 + row; then indices within the
	 * row: transposed, plus 4 minus 4, 3 - j instead of j */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" GRID_PLACES
         "  %two = constant {value = s64[4,4] [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]} : s64[4,4]\n"
         "  %m = mul %j, %two : s64[4,4]\n  %q = sub %p, %m : s64[4,4]\n  %r = gather %f, %q {axis = 0}",
         "4,4", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" GRID_PLACES
         "  %q = sub %p, %b4 : s64[4,4]\n  %r = gather %f, %q {axis = 0}",
         "4,4", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" GRID_PLACES
         "  %o = constant {value = s64[] [-1]} : s64[]\n  %ob = broadcast %o {shape = [4,4], axes = []} : s64[4,4]\n"
         "  %m = mul %j, %ob : s64[4,4]\n  %q = add %at, %m : s64[4,4]\n  %r = gather %f, %q {axis = 0}",
         "4,4", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" GRID_PLACES
         "  %n = neg %cols : s64[4]\n  %nb = broadcast %n {shape = [4,4], axes = [1]} : s64[4,4]\n"
         "  %q = add %at, %nb : s64[4,4]\n  %r = gather %f, %q {axis = 0}",
         "4,4", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" GRID_PLACES
         "  %n = mul %cols, %cols : s64[4]\n  %nb = broadcast %n {shape = [4,4], axes = [1]} : s64[4,4]\n"
         "  %q = add %at, %nb : s64[4,4]\n  %r = gather %f, %q {axis = 0}",
         "4,4", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" GRID_PLACES
         "  %t = transpose %at {order = [1,0]} : s64[4,4]\n  %q = add %t, %j : s64[4,4]\n"
         "  %s = transpose %q {order = [1,0]} : s64[4,4]\n  %r = gather %f, %s {axis = 0}",
         "4,4", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" GRID_PLACES
         "  %t = transpose %p {order = [1,0]} : s64[4,4]\n  %r = gather %f, %t {axis = 0}",
         "4,4", 1, 1},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" GRID_PLACES
         "  %a = add %b4, %p : s64[4,4]\n  %q = sub %a, %b4 : s64[4,4]\n  %r = gather %f, %q {axis = 0}",
         "4,4", 0, 1},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" GRID_PLACES
         "  %three = constant {value = s64[4,4] [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]} : s64[4,4]\n"
         "  %m = sub %three, %j : s64[4,4]\n  %q = add %at, %m : s64[4,4]\n  %r = gather %f, %q {axis = 0}",
         "4,4", 0, 1},
	/* row * 4 + indices converted from floats */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES
         "  %g = constant {value = f32[4] [4.0, 4.0, 4.0, 4.5]} : f32[4]\n  %n = cast %g {to = s64} : s64[4]\n"
         "  %q = add %p, %n : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", NONE, 0, true},
	/* row * 4 + a constant without rows */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" GRID_PLACES
         "  %k = constant {value = s64[4] [2, 0, 3, 1]} : s64[4]\n"
         "  %kb = broadcast %k {shape = [4,4], axes = [1]} : s64[4,4]\n"
         "  %q = add %at, %kb : s64[4,4]\n  %r = gather %f, %q {axis = 0}",
         "4,4", 0, 1},
	/* row * 4 + j / 2 and j % 2, their sum with j; 2 - j, or j if 2 - j is negative */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" GRID_PLACES GRID_TWOS
         "  %d = div %j, %two : s64[4,4]\n  %m = rem %j, %two : s64[4,4]\n"
         "  %a = add %at, %d : s64[4,4]\n  %q = add %a, %m : s64[4,4]\n  %r = gather %f, %q {axis = 0}",
         "4,4", 0, 1},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" GRID_PLACES GRID_TWOS
         "  %d = div %j, %two : s64[4,4]\n  %q = add %p, %d : s64[4,4]\n  %r = gather %f, %q {axis = 0}",
         "4,4", NONE, 0, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" GRID_PLACES GRID_TWOS
         "  %b = sub %two, %j : s64[4,4]\n"
         "  %c = lt %b, %zero : bool[4,4]\n  %s = select %c, %j, %b : s64[4,4]\n"
         "  %q = add %at, %s : s64[4,4]\n  %r = gather %f, %q {axis = 0}",
         "4,4", 0, 1},
	/* row * 4 + an index: an input; argmax of 4; an input between 0 and 3; between 0 and 4; its remainder by 4, which
	 * may be negative; the remainder, plus 4 if it is negative; argmax of 4 minus 1, plus 4 if that is negative; an
	 * input, plus 4 if it is negative; the same between 0 and 3 */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX
         "  %q = add %at, %d : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX
         "  %m = argmax %x {axis = 1} : s64[4]\n  %q = add %at, %m : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX
         "  %a = max %d, %zero : s64[4]\n  %m = min %a, %three : s64[4]\n  %q = add %at, %m : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX
         "  %a = max %d, %zero : s64[4]\n  %m = min %a, %four : s64[4]\n  %q = add %at, %m : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX
         "  %m = rem %d, %four : s64[4]\n  %q = add %at, %m : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX
         "  %m = rem %d, %four : s64[4]\n  %c = lt %m, %zero : bool[4]\n  %up = add %m, %four : s64[4]\n"
         "  %k2 = select %c, %up, %m : s64[4]\n  %q = add %at, %k2 : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX
         "  %a = argmax %x {axis = 1} : s64[4]\n  %m = sub %a, %one : s64[4]\n  %c = lt %m, %zero : bool[4]\n  %up = add %m, %four : s64[4]\n"
         "  %k2 = select %c, %up, %m : s64[4]\n  %q = add %at, %k2 : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX
         "  %c = lt %d, %zero : bool[4]\n  %up = add %d, %four : s64[4]\n"
         "  %k2 = select %c, %up, %d : s64[4]\n  %q = add %at, %k2 : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX
         "  %c = lt %d, %zero : bool[4]\n  %up = add %d, %four : s64[4]\n"
         "  %k2 = select %c, %up, %d : s64[4]\n  %a = max %k2, %zero : s64[4]\n  %m = min %a, %three : s64[4]\n"
         "  %q = add %at, %m : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1},
	/* an index from data, or 16 if it is not in 0 ... 3: added to row * 4; added to row * 4 - 12, with 4 in place of 16 */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX OUTSIDE
         "  %m = select %o, %all, %d : s64[4]\n  %q = add %at, %m : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX OUTSIDE
         "  %m = select %o, %all, %d : s64[4]\n  %e = sub %at, %twelve : s64[4]\n  %e2 = add %e, %m : s64[4]\n"
         "  %q = add %e2, %twelve : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX OUTSIDE
         "  %m = select %o, %four, %d : s64[4]\n  %q = add %at, %m : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX OUTSIDE
         "  %m = select %above, %all, %d : s64[4]\n  %q = add %at, %m : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX OUTSIDE
         "  %m = select %o, %three, %d : s64[4]\n  %q = add %at, %m : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1},
	/* a fraction of [0,1) times 4; minus row * 4, plus 3 if that is negative, plus row * 8 */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX OUTSIDE
         "  %h = constant {value = f32[4] [0, 0, 0, 0]} : f32[4]\n  %g = constant {value = f32[4] [1, 1, 1, 1]} : f32[4]\n"
         "  %ul = lt %u, %h : bool[4]\n  %uh = ge %u, %g : bool[4]\n  %uo = or %ul, %uh : bool[4]\n  %part = select %uo, %h, %u : f32[4]\n"
         "  %f4 = constant {value = f32[4] [4, 4, 4, 4]} : f32[4]\n  %p4 = mul %part, %f4 : f32[4]\n  %j = cast %p4 {to = s64} : s64[4]\n"
         "  %q = add %at, %j : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX OUTSIDE
         "  %n = neg %at : s64[4]\n  %nb = lt %n, %zero : bool[4]\n  %up = add %n, %three : s64[4]\n  %m = select %nb, %up, %n : s64[4]\n"
         "  %q1 = add %m, %at : s64[4]\n  %q = add %q1, %at : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", NONE, 0, true},
	/* x % 2 - 1.5, plus 2 if that is negative, times 3; row * 2^62, plus 4 if that is negative, minus row * 2^62 */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX OUTSIDE
         "  %m = argmax %x {axis = 1} : s64[4]\n  %two = add %one, %one : s64[4]\n  %k2 = rem %m, %two : s64[4]\n  %kf = cast %k2 {to = f32} : f32[4]\n"
         "  %half = constant {value = f32[4] [1.5, 1.5, 1.5, 1.5]} : f32[4]\n  %xs = sub %kf, %half : f32[4]\n"
         "  %z = constant {value = f32[4] [0, 0, 0, 0]} : f32[4]\n  %c = lt %xs, %z : bool[4]\n"
         "  %t = constant {value = f32[4] [2, 2, 2, 2]} : f32[4]\n  %up = add %xs, %t : f32[4]\n  %w2 = select %c, %up, %xs : f32[4]\n"
         "  %h = constant {value = f32[4] [3, 3, 3, 3]} : f32[4]\n  %w3 = mul %w2, %h : f32[4]\n  %j = cast %w3 {to = s64} : s64[4]\n"
         "  %q = add %at, %j : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX OUTSIDE
         "  %big = constant {value = s64[4] [1125899906842624, 1125899906842624, 1125899906842624, 1125899906842624]} : s64[4]\n"
         "  %b2 = constant {value = s64[4] [4096, 4096, 4096, 4096]} : s64[4]\n  %n1 = mul %i, %big : s64[4]\n  %n = mul %n1, %b2 : s64[4]\n"
         "  %c = lt %n, %zero : bool[4]\n  %up = add %n, %four : s64[4]\n  %m = select %c, %up, %n : s64[4]\n"
         "  %e = sub %m, %n : s64[4]\n  %q = add %at, %e : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", NONE, 0, true},
	/* 1000 if data are below -3 or at least 0, plus data of at least 0, twice, plus 6 */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX OUTSIDE
         "  %m3 = neg %three : s64[4]\n  %lo = lt %d, %m3 : bool[4]\n  %hi = ge %d, %zero : bool[4]\n  %oo = or %lo, %hi : bool[4]\n"
         "  %th = constant {value = s64[4] [1000, 1000, 1000, 1000]} : s64[4]\n  %s1 = select %oo, %th, %d : s64[4]\n"
         "  %pos = max %d, %zero : s64[4]\n  %s2 = add %s1, %pos : s64[4]\n  %s3 = min %s2, %zero : s64[4]\n"
         "  %s4 = add %s3, %three : s64[4]\n  %q = add %at, %s4 : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1, true},
	/* 3 minus an index of 0 ... 3, or minus 16; an element of the table 4 ... 7, or 0 if its index is outside, minus 4 */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX OUTSIDE
         "  %m = select %o, %all, %d : s64[4]\n  %n = sub %three, %m : s64[4]\n  %q = add %at, %n : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1, true},
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX OUTSIDE
         "  %tab = constant {value = s64[4] [4, 5, 6, 7]} : s64[4]\n  %t = gather %tab, %d {axis = 0} : s64[4]\n"
         "  %n = sub %t, %four : s64[4]\n  %q = add %at, %n : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1, true},
	/* a 32-bit index: a negative number minus 2^31 wraps to a positive one */
	{"", "4,4] is input 0 rows",
         "%f = reshape %x {shape = [16]} : f32[16]\n" ROW_PLACES DATA_INDEX
         "  %e = cast %d {to = s32} : s32[4]\n  %z = cast %zero {to = s32} : s32[4]\n  %a = min %e, %z : s32[4]\n"
         "  %least = constant {value = s32[4] [-2147483648, -2147483648, -2147483648, -2147483648]} : s32[4]\n"
         "  %b = add %a, %least : s32[4]\n  %m = max %b, %z : s32[4]\n  %w2 = cast %m {to = s64} : s64[4]\n"
         "  %q = add %at, %w2 : s64[4]\n  %r = gather %f, %q {axis = 0}",
         "4", 0, 1, true},
	/* functions: a loop over the axis of the rows, and over another axis; branches */
	{BODY, "3,4] is input 0 rows 1",
         "%h = constant {value = f32[4] [0.0, 0.0, 0.0, 0.0]} : f32[4]\n"
         "  %r, %s, %n = loop %h, %x {body = @step, bound = 3, carried = 1, sliced = 1, always = true}",
         "4], f32[3,4], s64[", 0, 1},
	{BODY, "4,4] is input 0 rows",
         "%h = constant {value = f32[4] [0.0, 0.0, 0.0, 0.0]} : f32[4]\n"
         "  %r, %s, %n = loop %h, %x {body = @step, bound = 4, carried = 1, sliced = 1, always = true}",
         "4], f32[4,4], s64[", NONE, 0, true},
	{BODY, "3,4] is input 0 rows 1",
         "%h = constant {value = f32[4] [0.0, 0.0, 0.0, 0.0]} : f32[4]\n"
         "  %s, %r, %n = loop %h, %x {body = @step, bound = 3, carried = 1, sliced = 1, always = true}",
         "4], f32[3,4], s64[", 1, 1},
	{UNTIL, "3,4] is input 0 rows 1",
         "%h = constant {value = f32[4] [0.0, 0.0, 0.0, 0.0]} : f32[4]\n"
         "  %r, %s, %n = loop %h, %x {body = @step, bound = 3, carried = 1, sliced = 1}",
         "4], f32[3,4], s64[", 0, 1, true},
	{BRANCHES, "4,4] is input 0 rows", "%r = call %x {callee = @turned}", "4,4", 1, 1},
	{BRANCHES, "4,4] is input 0 rows",
         "%c = constant {value = bool[] [true]} : bool[]\n  %r = cond %c, %x {then = @plain, else = @plain}",
         "4,4", 0, 1},
	{BRANCHES, "4,4] is input 0 rows",
         "%c = constant {value = bool[] [true]} : bool[]\n  %r = cond %c, %x {then = @plain, else = @turned}",
         "4,4", 0, 1, true},
	{BRANCHES, "4,4] is input 0 rows",
         "%a = reduce %x {kind = max, axes = [0,1]} : f32[]\n  %z = constant {value = f32[] [0.9]} : f32[]\n"
         "  %c = gt %a, %z : bool[]\n  %b = neg %x : f32[4,4]\n  %r = cond %c, %b {then = @plain, else = @plain}",
         "4,4", 0, 1, true},
};

/* The row of an element, according to batch_of. */
static int64_t
row_of(const BatchAxis *a, Type t, int64_t element)
{
	int64_t behind = 1;

	for (int i = t->rank - 1; i > a->axis; i--)
		behind *= t->dims[i];
	int64_t parts = 4 * a->repeats, place = element / behind % t->dims[a->axis];
	return place / (t->dims[a->axis] / parts) % 4;
}

static void
randomize(EvalTensor *x)
{
	for (int64_t i = 0; i < x->type->n; i++)
		x->f[i] = drand48() - 0.5;
}

/* No row changes another row's elements. */
static void
compare_with_interpreter(Module *m, const Function *f, const BatchAxis *a, Arena *arena)
{
	const Value *x = f->params.at[0];
	const BatchAxis of_x = {x->rows_axis, 1, false};
	EvalTensor args[2], before, after;
	Type t = function_result(f, 0)->type;

	for (int i = 0; i < 2; i++) {
		args[i] = eval_tensor_new(arena, f->params.at[i]->type);
		randomize(&args[i]);
	}
	Interp in = interp_new(m, arena, true);
	interp_run(&in, f, args, &before);
	for (int row = 0; row < 4; row++) {
		EvalTensor other = args[0];
		other.f = arena_copy(arena, other.f, sizeof(double) * (size_t)x->type->n);
		for (int64_t i = 0; i < x->type->n; i++)
			if (row_of(&of_x, x->type, i) == row)
				other.f[i] = drand48() - 0.5;
		interp_run(&in, f, (EvalTensor[]){other, args[1]}, &after);
		for (int64_t i = 0; i < t->n; i++)
			if (before.f[i] != after.f[i] && (a->axis < 0 || row_of(a, t, i) != row))
				fail_msg("row %d of x changes element %lld", row, (long long)i);
	}
}

static void
test_axes(void **state)
{
	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		Arena *arena = arena_new();
		Diag *diag = diag_new("test", stderr);
		size_t first = strcspn(cases[i].type, "]");
		Module *m = module_parse(
			arena_printf(
				arena,
				"%sfunc @f(%%x: f32[%s, %%w: f32[4,4]) -> f32[%.*s] {\n  %s : f32[%s]\n"
				"  return %%r\n}\n",
				cases[i].functions, cases[i].x, (int)first, cases[i].type,
				cases[i].body, cases[i].type),
			"batch", NULL, diag);
		assert_non_null(m);
		const Function *f = module_function(m, "f");
		BatchAxes b = batch_of(arena, f);
		const BatchAxis *a = &b.of[function_result(f, 0)->id];
		assert_int_equal(b.rows, 4);
		if (a->axis != cases[i].axis || a->repeats != cases[i].repeats ||
		    a->mixed != cases[i].mixed)
			fail_msg("%s: axis %d, %lld repeats%s", cases[i].body, a->axis,
			         (long long)a->repeats, a->mixed ? ", mixed" : "");
		if (!a->mixed)
			compare_with_interpreter(m, f, a, arena);
		module_free(m);
		diag_free(diag);
		arena_free(arena);
	}
}

/* ---- diamonds: 64 in a row have 2^64 paths */
enum { DIAMONDS = 64 };

static void
add_calls(Text *out)
{
	text_printf(out, "func @f0(%%x: f32[4,4]) -> f32[4,4] {\n"
	                 "  %%r = neg %%x : f32[4,4]\n  return %%r\n}\n");
	for (int i = 1; i <= DIAMONDS; i++)
		text_printf(out,
		            "func @f%d(%%x: f32[4,4]) -> f32[4,4] {\n"
		            "  %%a = call %%x {callee = @f%d} : f32[4,4]\n"
		            "  %%b = call %%x {callee = @f%d} : f32[4,4]\n"
		            "  %%r = add %%a, %%b : f32[4,4]\n  return %%r\n}\n",
		            i, i - 1, i - 1);
	text_printf(out,
	            "func @f(%%x: f32[4,4] is input 0 rows) -> f32[4,4] {\n"
	            "  %%r = call %%x {callee = @f%d} : f32[4,4]\n  return %%r\n}\n",
	            DIAMONDS);
}

/* A gather at row * 4 + kN. k0 is 0; each further k is computed from the previous k. */
static void
add_places(Text *out, bool split, int n)
{
	text_printf(out, "func @f(%%x: f32[4,4] is input 0 rows) -> f32[4,1] {\n"
	                 "  %%f = reshape %%x {shape = [16]} : f32[16]\n"
	                 "  %%k0 = constant {value = s64[4,1] [0, 0, 0, 0]} : s64[4,1]\n");
	for (int i = 0; i < n; i++) {
		const char *left = split ? "l" : "k", *right = split ? "h" : "k";
		if (split)
			text_printf(
				out,
				"  %%c%d = concat %%k%d, %%k%d {axis = 1} : s64[4,2]\n"
				"  %%l%d = slice %%c%d {start = [0,0], stop = [4,1], step = [1,1]} : s64[4,1]\n"
				"  %%h%d = slice %%c%d {start = [0,1], stop = [4,2], step = [1,1]} : s64[4,1]\n",
				i, i, i, i, i, i, i);
		text_printf(out, "  %%k%d = add %%%s%d, %%%s%d : s64[4,1]\n", i + 1, left, i, right,
		            i);
	}
	text_printf(out,
	            "  %%i = iota {dtype = s64, shape = [4,1], axis = 0} : s64[4,1]\n"
	            "  %%four = constant {value = s64[4,1] [4, 4, 4, 4]} : s64[4,1]\n"
	            "  %%at = mul %%i, %%four : s64[4,1]\n"
	            "  %%p = add %%k%d, %%at : s64[4,1]\n"
	            "  %%r = gather %%f, %%p {axis = 0} : f32[4,1]\n  return %%r\n}\n",
	            n);
}

static void
add_sums(Text *out)
{
	add_places(out, false, DIAMONDS);
}

static void
add_parts(Text *out)
{
	add_places(out, true, DIAMONDS);
}

/* More values than batch_of looks at. */
static void
add_many_sums(Text *out)
{
	add_places(out, false, 1100);
}

static void
add_list(Text *out, const char *text, int n)
{
	for (int i = 0; i < n; i++)
		text_printf(out, "%s%s", i ? ", " : "", text);
}

/* Nested loops. A loop negates its first carried value and passes each of the others on to the next. The inner loop begins
 * with zeros and sees the carried values of all outer loops. */
static void
add_loops(Text *out)
{
	enum { DEPTH = 5, CARRIED = 10 };

	for (int d = DEPTH; d >= 0; d--) {
		text_printf(out,
		            d ? "func @f%d(%%i: s64[]" : "func @f(%%x: f32[4,4] is input 0 rows",
		            d);
		for (int i = 0; d && i < CARRIED * d; i++)
			text_printf(out, ", %%c%d: f32[4,4]", i);
		text_printf(out, d ? ", %%x: f32[4,4]) -> (bool[], " : ") -> (");
		add_list(out, "f32[4,4]", CARRIED);
		text_printf(out, ") {\n  %%go = constant {value = bool[] [true]} : bool[]\n"
		                 "  %%h = constant {value = f32[] [0]} : f32[]\n"
		                 "  %%z = broadcast %%h {shape = [4,4], axes = []} : f32[4,4]\n"
		                 "  %%y = neg %%x : f32[4,4]\n");
		for (int i = 0; d < DEPTH && i < CARRIED; i++)
			text_printf(out, "%s%%r%d", i ? ", " : "  ", i);
		if (d < DEPTH) {
			text_printf(out, ", %%n = loop ");
			add_list(out, "%z", CARRIED);
			for (int i = 0; i < CARRIED * d; i++)
				text_printf(out, ", %%c%d", i);
			text_printf(
				out,
				", %%x {body = @f%d, bound = 2, carried = %d, sliced = 0, always = true} : ",
				d + 1, CARRIED);
			add_list(out, "f32[4,4]", CARRIED);
			text_printf(out, ", s64[]\n");
		}
		text_printf(out, d ? "  return %%go, %%y" : "  return ");
		for (int i = 0; i < CARRIED - (d > 0); i++)
			text_printf(out, d ? ", %%c%d" : i ? ", %%r%d" : "%%r%d", i);
		text_printf(out, "\n}\n");
	}
}

static BatchAxis
axis_of(void (*add)(Text *out))
{
	Arena *arena = arena_new();
	Diag *diag = diag_new("test", stderr);
	Text text = {0};

	add(&text);
	Module *m = module_parse(text.at, "made", NULL, diag);
	assert_non_null(m);
	const Function *f = module_function(m, "f");
	BatchAxis a = batch_of(arena, f).of[function_result(f, 0)->id];
	text_free(&text);
	module_free(m);
	diag_free(diag);
	arena_free(arena);
	return a;
}

/* Each diamond ends with the rows along axis 0. */
static void
test_diamonds(void **state)
{
	static void (*const add[])(Text * out) = {add_calls, add_sums, add_parts};

	(void)state;
	for (int i = 0; i < COUNT(add); i++) {
		BatchAxis a = axis_of(add[i]);
		if (a.axis != 0 || a.repeats != 1 || a.mixed)
			fail_msg("diamonds %d: axis %d%s", i, a.axis, a.mixed ? ", mixed" : "");
	}
}

/* If the analysis would take too long, batch_of answers that rows are mixed. */
static void
test_limits(void **state)
{
	static void (*const add[])(Text * out) = {add_many_sums, add_loops};

	(void)state;
	for (int i = 0; i < COUNT(add); i++) {
		BatchAxis a = axis_of(add[i]);
		if (!a.mixed)
			fail_msg("limit %d: axis %d", i, a.axis);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_axes),
	                                   cmocka_unit_test(test_diamonds),
	                                   cmocka_unit_test(test_limits)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

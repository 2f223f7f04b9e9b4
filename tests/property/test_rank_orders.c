/*
 * Rank orders of 35 Megatron configurations, said with meshes alone: a mesh of shape (pp, dp, cp,
 * tp), last fastest, is the dense grid, one of shape (pp, edp, ep, etp) the expert grid. The
 * library is asked which rank stands at each coordinate, the groups are read off and hashed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <xfer/refit.h>

#include "data/rank_orders.h"
#include "sha256.h"

enum { MAX_WORLD = 16384, N_AXES = 4, N_ORDERS = sizeof rank_orders / sizeof rank_orders[0] };

typedef struct grid {
  int shape[N_AXES];    /* slowest first */
  int ranks[MAX_WORLD]; /* row-major */
} grid;

static char json[1 << 20];
static size_t n_json;

static void say(const char *text)
{
  size_t n = strlen(text);
  assert_true(n_json + n < sizeof json);
  memcpy(json + n_json, text, n + 1);
  n_json += n;
}

/* A tensor of the mesh's own shape, sharded on all axes, has one element per rank: its owner is the
 * rank there. */
static void grid_read(grid *g, int a, int b, int c, int d)
{
  const xfer_placement shards[N_AXES] = {xfer_shard(0), xfer_shard(1), xfer_shard(2),
                                         xfer_shard(3)};
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  xfer_mesh *mesh = NULL;
  xfer_layout *layout = NULL;
  int64_t shape[N_AXES] = {a, b, c, d};
  for (int i = 0; i < N_AXES; i++)
    g->shape[i] = (int)shape[i];
  assert_int_equal(xfer_mesh_create(&mesh, g->shape, N_AXES, NULL), XFER_OK);
  desc.mesh = mesh;
  desc.dtype = XFER_U8;
  desc.n_dims = N_AXES;
  desc.shape = shape;
  desc.placements = shards;
  desc.n_placements = N_AXES;
  assert_int_equal(xfer_layout_create(&layout, &desc), XFER_OK);
  int world = xfer_mesh_size(mesh);
  assert_true(world <= MAX_WORLD);
  for (int at = 0; at < world; at++) {
    int64_t index[N_AXES];
    xfer_owner owner;
    size_t n_owners = 0;
    for (int i = N_AXES - 1, rest = at; i >= 0; i--) {
      index[i] = rest % g->shape[i];
      rest /= g->shape[i];
    }
    assert_int_equal(xfer_layout_owners(layout, index, &owner, 1, &n_owners), XFER_OK);
    assert_int_equal(n_owners, 1);
    g->ranks[at] = owner.rank;
  }
  xfer_layout_destroy(layout);
  xfer_mesh_destroy(mesh);
}

/* The same from the refit layer: each rank of a training side stands at the coordinates that it
 * says. */
static void grid_read_side(grid *g, const xfer_side *side, const char *const *axes,
                           const int *shape)
{
  int world = xfer_side_size(side);
  assert_true(world <= MAX_WORLD);
  memcpy(g->shape, shape, sizeof g->shape);
  for (int at = 0; at < world; at++)
    g->ranks[at] = -1;
  for (int rank = 0; rank < world; rank++) {
    int at = 0;
    for (int i = 0; i < N_AXES; i++) {
      int coordinate = -1;
      assert_int_equal(xfer_side_coordinate(side, axes[i], rank, &coordinate), XFER_OK);
      assert_true(coordinate >= 0 && coordinate < shape[i]);
      at = at * shape[i] + coordinate;
    }
    assert_int_equal(g->ranks[at], -1); /* nobody else stands there */
    g->ranks[at] = rank;
  }
}

/* Row-major position of the i-th choice of the axes with in[axis] == which. */
static int place_of(const grid *g, const bool *in, bool which, int i)
{
  int at = 0, pitch = 1;
  for (int axis = N_AXES - 1; axis >= 0; axis--) {
    if (in[axis] == which) {
      at += i % g->shape[axis] * pitch;
      i /= g->shape[axis];
    }
    pitch *= g->shape[axis];
  }
  return at;
}

/* "name":[[..],..] of the groups whose members differ in the coordinates `in`. */
static void say_groups(const char *name, const grid *g, bool a, bool b, bool c, bool d)
{
  const bool in[N_AXES] = {a, b, c, d};
  int n_members = 1, n_groups = 1;
  for (int i = 0; i < N_AXES; i++)
    *(in[i] ? &n_members : &n_groups) *= g->shape[i];
  say(n_json == 1 ? "\"" : ",\"");
  say(name);
  say("\":[");
  for (int k = 0; k < n_groups; k++) {
    say(k == 0 ? "[" : ",[");
    for (int i = 0; i < n_members; i++) {
      char number[16];
      int rank = g->ranks[place_of(g, in, false, k) + place_of(g, in, true, i)];
      (void)snprintf(number, sizeof number, "%s%d", i == 0 ? "" : ",", rank);
      say(number);
    }
    say("]");
  }
  say("]");
}

/* Hash the groups of both grids, the keys in alphabetical order. */
static void assert_groups(const grid *dense, const grid *expert, const rank_order *o)
{
  char hex[65];
  n_json = 0;
  say("{");
  say_groups("cp", dense, false, false, true, false);
  say_groups("dp", dense, false, true, false, false);
  say_groups("dp-cp", dense, false, true, true, false);
  say_groups("edp", expert, false, true, false, false);
  say_groups("ep", expert, false, false, true, false);
  say_groups("etp", expert, false, false, false, true);
  say_groups("pp", dense, true, false, false, false);
  say_groups("tp", dense, false, false, false, true);
  say_groups("tp-pp", dense, true, false, false, true);
  say("}");
  sha256_hex(hex, json, n_json);
  hex[16] = '\0';
  print_message("world %d, tp %d cp %d dp %d pp %d, etp %d ep %d edp %d\n", o->world, o->tp, o->cp,
                o->dp, o->pp, o->etp, o->ep, o->edp);
  assert_string_equal(hex, o->hash);
}

static grid dense, expert;

static void test_meshes_give_megatrons_groups_in_35_configurations(void **state)
{
  (void)state;
  assert_int_equal(N_ORDERS, 35);
  for (int i = 0; i < N_ORDERS; i++) {
    const rank_order *o = &rank_orders[i];
    assert_int_equal(o->tp * o->cp * o->dp * o->pp, o->world);
    assert_int_equal(o->etp * o->ep * o->edp * o->pp, o->world);
    grid_read(&dense, o->pp, o->dp, o->cp, o->tp);
    grid_read(&expert, o->pp, o->edp, o->ep, o->etp);
    assert_groups(&dense, &expert, o);
  }
}

static void test_megatron_sides_stand_in_megatrons_groups(void **state)
{
  static const char *const dense_axes[] = {"pp", "dp", "cp", "tp"};
  static const char *const expert_axes[] = {"pp", "edp", "ep", "etp"};
  (void)state;
  for (int i = 0; i < N_ORDERS; i++) {
    const rank_order *o = &rank_orders[i];
    const int dense_shape[] = {o->pp, o->dp, o->cp, o->tp};
    const int expert_shape[] = {o->pp, o->edp, o->ep, o->etp};
    char spec[200];
    xfer_side *side = NULL;
    (void)snprintf(spec, sizeof spec, "megatron:tp%d,cp%d,pp%d,ep%d,etp%d,dp%d", o->tp, o->cp,
                   o->pp, o->ep, o->etp, o->dp);
    assert_int_equal(xfer_side_create(&side, spec, NULL), XFER_OK);
    assert_int_equal(xfer_side_size(side), o->world);
    grid_read_side(&dense, side, dense_axes, dense_shape);
    grid_read_side(&expert, side, expert_axes, expert_shape);
    assert_groups(&dense, &expert, o);
    xfer_side_destroy(side);
  }
}

static void test_sha256_of_the_standards_examples(void **state)
{
  char hex[65];
  (void)state;
  sha256_hex(hex, "", 0);
  assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  sha256_hex(hex, "abc", 3);
  assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  sha256_hex(hex, "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56);
  assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sha256_of_the_standards_examples),
      cmocka_unit_test(test_meshes_give_megatrons_groups_in_35_configurations),
      cmocka_unit_test(test_megatron_sides_stand_in_megatrons_groups),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

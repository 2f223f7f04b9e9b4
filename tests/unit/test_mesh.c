/* Meshes: positions of ranks, and what is no mesh. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layouts_of.h"
#include "property/rng.h"

#include <limits.h>

static void test_find_gives_each_ranks_position_and_minus_one_for_others(void **state)
{
  (void)state;
  static const struct {
    int shape[3];
    int n_axes;
    int ranks[6];
    int absent[6];
  } cases[] = {
      {{6}, 1, {0, 1, 2, 3, 4, 5}, {-1, 6, 7, INT_MAX, INT_MIN, -6}},
      {{2, 3}, 2, {5, 4, 3, 2, 1, 0}, {-1, 6, 7, INT_MAX, INT_MIN, -6}},
      {{3, 1, 2}, 3, {10, 12, 14, 20, 30, 31}, {9, 11, 13, 15, 29, 32}},
      {{1, 6}, 2, {30, 10, (1 << 24) - 1, 0, 20, 5}, {-1, 1, 6, 15, 29, INT_MAX - 1}},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    xfer_mesh *mesh = NULL;

    print_message("case %zu\n", c);
    assert_int_equal(xfi_mesh_create(&mesh, cases[c].shape, cases[c].n_axes, cases[c].ranks),
                     XFER_OK);
    assert_int_equal(mesh->size, 6);
    for (int i = 0; i < 6; i++) {
      assert_int_equal(xfi_mesh_find(mesh, cases[c].ranks[i]), i);
      assert_int_equal(xfi_mesh_find(mesh, cases[c].absent[i]), -1);
    }
    xfi_mesh_destroy(mesh);
  }
}

static void test_find_in_a_shuffled_mesh_of_thousands(void **state)
{
  (void)state;
  enum { N = 4096 };
  static int ranks[N];
  const int shape[] = {8, 8, 64};
  xfer_mesh *mesh = NULL;
  rng r = rng_of(1, 2, 3);

  for (int i = 0; i < N; i++)
    ranks[i] = 3 * i;
  rng_shuffle(&r, ranks, N);
  assert_int_equal(xfi_mesh_create(&mesh, shape, 3, ranks), XFER_OK);
  for (int i = 0; i < N; i++) {
    assert_int_equal(xfi_mesh_find(mesh, ranks[i]), i);
    assert_int_equal(xfi_mesh_find(mesh, ranks[i] + 1), -1);
  }
  xfi_mesh_destroy(mesh);
}

static void test_without_ranks_they_count_from_zero(void **state)
{
  (void)state;
  const int shape[] = {2, 1, 3, 4};
  const int stride[] = {12, 12, 4, 1};
  xfer_mesh *mesh = NULL;

  assert_int_equal(xfi_mesh_create(&mesh, shape, 4, NULL), XFER_OK);
  assert_int_equal(mesh->n_axes, 4);
  assert_int_equal(mesh->size, 24);
  assert_memory_equal(mesh->shape, shape, sizeof shape);
  assert_memory_equal(mesh->stride, stride, sizeof stride);
  assert_null(mesh->order);
  for (int i = 0; i < 24; i++)
    assert_int_equal(mesh->ranks[i], i);
  xfi_mesh_destroy(mesh);
}

static void test_inputs_are_copied(void **state)
{
  (void)state;
  int shape[] = {2};
  int ranks[] = {7, 3};
  xfer_mesh *mesh = NULL;

  assert_int_equal(xfi_mesh_create(&mesh, shape, 1, ranks), XFER_OK);
  shape[0] = 9;
  ranks[0] = ranks[1] = 0;
  assert_int_equal(mesh->shape[0], 2);
  assert_int_equal(xfi_mesh_find(mesh, 7), 0);
  assert_int_equal(xfi_mesh_find(mesh, 3), 1);
  xfi_mesh_destroy(mesh);
}

static void test_what_is_no_mesh_is_refused_with_the_values(void **state)
{
  (void)state;
  static const struct {
    int shape[9];
    int n_axes;
    int ranks[4];
    xfer_status st;
    const char *text;
  } cases[] = {
      {{1}, 0, {0}, XFER_ERR_ARG, "a mesh of 0 axes; 1 to 8 are possible"},
      {{1}, -2, {0}, XFER_ERR_ARG, "a mesh of -2 axes; 1 to 8 are possible"},
      {{1, 1, 1, 1, 1, 1, 1, 1, 1}, 9, {0}, XFER_ERR_ARG, "a mesh of 9 axes; 1 to 8 are possible"},
      {{2, 0}, 2, {0}, XFER_ERR_ARG, "mesh axis 1 has size 0; want at least 1"},
      {{-4, 2}, 2, {0}, XFER_ERR_ARG, "mesh axis 0 has size -4; want at least 1"},
      {{2, 2},
       2,
       {0, 1, -7, 3},
       XFER_ERR_ARG,
       "rank -7 at position 2 of the mesh; ranks count from 0"},
      {{4}, 1, {5, 2, 9, 2}, XFER_ERR_ARG, "rank 2 is in the mesh twice"},
      {{4}, 1, {3, 3, 3, 3}, XFER_ERR_ARG, "rank 3 is in the mesh twice"},
      {{1, 2}, 2, {6, 6}, XFER_ERR_ARG, "rank 6 is in the mesh twice"},
      {{1, 2},
       2,
       {0, 1 << 24},
       XFER_ERR_OVERFLOW,
       "rank 16777216 at position 1 of the mesh is above 16777215"},
      {{65536, 32768},
       2,
       {0},
       XFER_ERR_OVERFLOW,
       "mesh of more than 16777216 ranks, the most that one may have"},
      {{4096, 4097},
       2,
       {0},
       XFER_ERR_OVERFLOW,
       "mesh of more than 16777216 ranks, the most that one may have"},
      {{2, INT_MAX},
       2,
       {0},
       XFER_ERR_OVERFLOW,
       "mesh of more than 16777216 ranks, the most that one may have"},
      {{INT_MAX, INT_MAX, INT_MAX, INT_MAX, INT_MAX, INT_MAX, INT_MAX, INT_MAX},
       8,
       {0},
       XFER_ERR_OVERFLOW,
       "mesh of more than 16777216 ranks, the most that one may have"},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    xfer_mesh *mesh = NULL;

    print_message("%s\n", cases[c].text);
    assert_int_equal(xfi_mesh_create(&mesh, cases[c].shape, cases[c].n_axes, cases[c].ranks),
                     cases[c].st);
    assert_string_equal(xfer_last_error(), cases[c].text);
    assert_null(mesh);
  }
}

static void test_a_shared_mesh_lives_until_its_last_owner_is_gone(void **state)
{
  (void)state;
  const int shape[] = {3};
  xfer_mesh *mesh = NULL;

  assert_int_equal(xfi_mesh_create(&mesh, shape, 1, NULL), XFER_OK);
  assert_ptr_equal(xfi_mesh_share(mesh), mesh);
  xfi_mesh_destroy(mesh);
  assert_int_equal(xfi_mesh_find(mesh, 2), 2);
  xfi_mesh_destroy(mesh);
  xfi_mesh_destroy(NULL);
}

static xfer_status make(void *context)
{
  const int *ranks = context;
  const int shape[] = {2, 2};
  xfer_mesh *mesh = NULL;
  xfer_status st = xfi_mesh_create(&mesh, shape, 2, ranks);

  assert_true((mesh != NULL) == (st == XFER_OK));
  xfi_mesh_destroy(mesh);
  return st;
}

static void test_create_survives_each_failed_allocation(void **state)
{
  (void)state;
  int shuffled[] = {3, 1, 2, 0};

  assert_int_equal(fail_each_allocation(make, NULL), 2);
  assert_int_equal(fail_each_allocation(make, shuffled), 4);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_find_gives_each_ranks_position_and_minus_one_for_others),
      cmocka_unit_test(test_find_in_a_shuffled_mesh_of_thousands),
      cmocka_unit_test(test_without_ranks_they_count_from_zero),
      cmocka_unit_test(test_inputs_are_copied),
      cmocka_unit_test(test_what_is_no_mesh_is_refused_with_the_values),
      cmocka_unit_test(test_a_shared_mesh_lives_until_its_last_owner_is_gone),
      cmocka_unit_test(test_create_survives_each_failed_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

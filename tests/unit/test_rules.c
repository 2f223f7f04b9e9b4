/* Families that are read when a model of their type is: the same as among all of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <string.h>

#include "rules.h"

static const xfi_family *family_of(const xfer_rules *rules, const char *type)
{
  for (size_t i = rules->n_families; i-- > 0;) {
    if (xfi_doc_lists(rules->families[i].model_types, type)) return &rules->families[i];
  }
  return NULL;
}

static void assert_same(const xfer_rules *all, const xfer_rules *few, const char *type)
{
  const xfi_family *a = family_of(all, type), *b = family_of(few, type);
  const xfi_family *includes[2][XFI_MAX_INCLUDES];
  int n;

  assert_non_null(b);
  assert_string_equal(a->name, b->name);
  n = xfi_family_with_included(all, a, includes[0]);
  assert_int_equal(xfi_family_with_included(few, b, includes[1]), n);
  for (int i = 0; i < n; i++)
    assert_string_equal(includes[0][i]->name, includes[1][i]->name);
}

static void test_a_family_is_found_by_type_and_with_all_that_it_includes(void **state)
{
  xfer_rules *all = NULL;
  size_t n_types = 0;

  (void)state;
  assert_int_equal(xfi_rules_families(&all, "", ""), XFER_OK);
  for (size_t i = 0; i < all->n_families; i++) {
    const json_t *types = all->families[i].model_types;

    for (size_t k = 0; k < json_array_size(types); k++, n_types++) {
      const char *type = xfi_doc_text(types, k);
      xfer_rules *few = NULL;

      assert_int_equal(xfi_rules_families(&few, k % 2 == 0 ? type : "", k % 2 == 0 ? "" : type),
                       XFER_OK);
      assert_true(few->n_families < all->n_families / 2);
      assert_same(all, few, type);
      xfi_rules_destroy(few);
    }
  }
  assert_true(n_types > 100);
  xfi_rules_destroy(all);
}

static void test_files_of_families_are_called_as_they_are(void **state)
{
  (void)state;
  for (const xfi_rules_file *f = XFI_RULES_FILES; f->name != NULL; f++) {
    xfi_doc doc;
    const char *family;

    assert_int_equal(xfi_doc_read(&doc, f->name, f->text), XFER_OK);
    family = json_string_value(json_object_get(doc.root, "family"));
    assert_true((family == NULL) == (f->family == NULL));
    if (family != NULL) assert_string_equal(family, f->family);
    xfi_doc_free(&doc);
  }
}

static void test_a_type_that_no_family_has(void **state)
{
  xfer_rules *rules = NULL;

  (void)state;
  assert_int_equal(xfi_rules_families(&rules, "none_of_these", "\""), XFER_OK);
  assert_int_equal(rules->n_families, 0);
  xfi_rules_destroy(rules);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_family_is_found_by_type_and_with_all_that_it_includes),
      cmocka_unit_test(test_files_of_families_are_called_as_they_are),
      cmocka_unit_test(test_a_type_that_no_family_has),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}

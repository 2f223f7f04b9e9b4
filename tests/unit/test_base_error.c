/* The last error: per thread, bounded, never NULL; and the macros that jump. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "error.h"

#include <pthread.h>
#include <string.h>

static void *other_thread(void *arg)
{
  (void)arg;
  int empty_at_first = xfer_last_error()[0] == '\0';
  xfi_set_error("the other thread's");
  return empty_at_first ? NULL : (void *)1;
}

static void test_error_text_belongs_to_its_thread(void **state)
{
  (void)state;
  pthread_t thread;
  void *failed = NULL;

  xfi_set_error("dim %d has %d elements", 1, 7);
  assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
  assert_int_equal(pthread_join(thread, &failed), 0);
  assert_null(failed);
  assert_string_equal(xfer_last_error(), "dim 1 has 7 elements");
}

static void test_long_text_is_cut(void **state)
{
  (void)state;
  char name[2 * XFI_ERROR_BYTES];

  memset(name, 'x', sizeof name);
  name[sizeof name - 1] = '\0';
  xfi_set_error("tensor %s", name);
  assert_int_equal(strlen(xfer_last_error()), XFI_ERROR_BYTES - 1);
  assert_memory_equal(xfer_last_error(), "tensor xxx", 10);
}

/* The last character that is there is whole, wherever the text is cut; what is not UTF-8 is cut
 * where it must be. */
static void test_long_text_is_cut_between_characters(void **state)
{
  static const char *const characters[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
  char text[3 * XFI_ERROR_BYTES];
  char cut[200];

  (void)state;
  for (size_t size = 2; size <= 4; size++)
    for (size_t before = 0; before < size; before++) {
      memset(text, 'x', before);
      for (size_t i = 0; i < XFI_ERROR_BYTES / 2; i++)
        memcpy(text + before + i * size, characters[size - 2], size);
      text[before + XFI_ERROR_BYTES / 2 * size] = '\0';
      xfi_set_error("%s%s", text, text);
      assert_int_equal((strlen(xfer_last_error()) - before) % size, 0);
      assert_true(strlen(xfer_last_error()) > XFI_ERROR_BYTES - 1 - size);
      xfi_cut_text(cut, sizeof cut, text);
      assert_int_equal((strlen(cut) - before) % size, 0);
      assert_true(strlen(cut) > sizeof cut - 1 - size);
      text[before + 40 * size] = '\0';
      xfi_cut_text(cut, sizeof cut, text);
      assert_string_equal(cut, text);
    }
  memset(text, 0x80, sizeof text);
  text[sizeof text - 1] = '\0';
  xfi_set_error("%s", text);
  assert_int_equal(strlen(xfer_last_error()), XFI_ERROR_BYTES - 1);
}

static void test_text_may_quote_the_last_one(void **state)
{
  (void)state;
  xfi_set_error("unhandled error");
  xfi_set_error("send to rank %d: %s", 3, xfer_last_error());
  assert_string_equal(xfer_last_error(), "send to rank 3: unhandled error");
}

/* How many steps of `checked` were made. */
static int steps;

static xfer_status checked(int value)
{
  steps = 1;
  XFI_CHECK(value >= 0, XFER_ERR_ARG, "value %d is negative", value);
  steps = 2;
  return XFER_OK;
}

static xfer_status tried(int value)
{
  XFI_TRY(checked(value));
  steps = 3;
  return XFER_OK;
}

static void test_check_and_try_jump_with_status_and_text(void **state)
{
  (void)state;
  assert_int_equal(tried(4), XFER_OK);
  assert_int_equal(steps, 3);
  assert_int_equal(tried(-4), XFER_ERR_ARG);
  assert_int_equal(steps, 1);
  assert_string_equal(xfer_last_error(), "value -4 is negative");
}

static xfer_status without_memory(const void *memory)
{
  XFI_CHECK(memory != NULL, XFER_ERR_NOMEM, "%d ranks", 7);
  return XFER_OK;
}

static void test_text_without_memory_says_for_what(void **state)
{
  (void)state;
  assert_int_equal(without_memory(NULL), XFER_ERR_NOMEM);
  assert_string_equal(xfer_last_error(), "no memory for 7 ranks");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_error_text_belongs_to_its_thread),
      cmocka_unit_test(test_long_text_is_cut),
      cmocka_unit_test(test_long_text_is_cut_between_characters),
      cmocka_unit_test(test_text_may_quote_the_last_one),
      cmocka_unit_test(test_check_and_try_jump_with_status_and_text),
      cmocka_unit_test(test_text_without_memory_says_for_what),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

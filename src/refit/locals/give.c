/*
 * Local tensors handed in by name. A framework's names go through the side's renames, then, where
 * the rules do not have the name, through the other spellings that the framework is known to use.
 */
#include "locals.h"

#include "alloc.h"
#include "checked.h"
#include "dtype.h"
#include "error.h"
#include "names.h"
#include "text.h"
#include "vec.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t REACH_MAX = INT64_C(1) << 62; /* the limit for strides, as for views */

/* Adds a problem with the text of the last error. */
static xfer_status add_problem(xfer_locals *locals, const xfi_local_tensor *of, bool is_missing)
{
  xfi_local_problem problem = {NULL, of, is_missing};

  XFI_TRY(xfi_vec_reserve(&locals->problems, &locals->problems_capacity, locals->n_problems + 1,
                          sizeof *locals->problems));
  XFI_TRY(xfi_name_copy(&problem.text, xfer_last_error()));
  locals->problems[locals->n_problems++] = problem;
  return XFER_OK;
}

/* Drops the problems of one tensor, or those of all missing tensors if `of` is NULL. */
static void drop_problems(xfer_locals *locals, const xfi_local_tensor *of)
{
  size_t n = 0;

  for (size_t i = 0; i < locals->n_problems; i++) {
    xfi_local_problem *p = &locals->problems[i];

    if (of != NULL ? p->of == of : p->is_missing)
      xfi_free(p->text);
    else
      locals->problems[n++] = *p;
  }
  locals->n_problems = n;
}

static xfi_local_tensor *find_local(const xfer_locals *locals, int side, const char *name)
{
  const xfi_name_ref key = {name, 0};
  const xfi_name_ref *found = NULL;

  if (locals->n_by_name[side] > 0)
    found = bsearch(&key, locals->by_name[side], locals->n_by_name[side], sizeof key,
                    xfi_compare_names);
  return found == NULL ? NULL : &locals->at[found->at];
}

/* The name after the side's renames; the caller frees it. */
static xfer_status rename_given(char **renamed, const xfer_side *side, const char *name)
{
  char *next = NULL;

  XFI_TRY(xfi_name_copy(renamed, name));
  for (size_t i = 0; i < side->n_overrides; i++) {
    if (side->overrides[i].kind != XFI_OVERRIDE_RENAME) continue;
    XFI_TRY(xfi_glob_rename(&next, side->overrides[i].pattern, side->overrides[i].to, *renamed));
    if (next == NULL) continue;
    xfi_free(*renamed);
    *renamed = next;
  }
  return XFER_OK;
}

/* Looks for the name with one of the side's spellings replaced. *shorter becomes the result of the
 * first replacement that makes the name shorter, which the caller frees; NULL: there is none. */
static xfer_status respell(xfi_local_tensor **local, char **shorter, const xfer_locals *locals,
                           int side, const char *name)
{
  const json_t *list = locals->refit->sides[side].side->framework->spellings;

  *shorter = NULL;
  for (size_t i = 0; i < json_array_size(list) && *local == NULL; i++) {
    char *other = NULL;

    XFI_TRY(xfi_glob_rename(&other, xfi_doc_text(json_array_get(list, i), 0),
                            xfi_doc_text(json_array_get(list, i), 1), name));
    if (other == NULL) continue;
    *local = find_local(locals, side, other);
    if (*shorter == NULL && strlen(other) < strlen(name))
      *shorter = other;
    else
      xfi_free(other);
  }
  return XFER_OK;
}

/* Applies spellings repeatedly as long as they make the name shorter. Only the first one that does
 * is followed: trying all combinations would take too long for long names. */
static xfer_status find_spelling(xfi_local_tensor **local, const xfer_locals *locals, int side,
                                 const char *name)
{
  char *last = NULL, *shorter = NULL;
  xfer_status st = XFER_OK;

  *local = find_local(locals, side, name);
  while (*local == NULL && name != NULL) {
    st = respell(local, &shorter, locals, side, name);
    xfi_free(last);
    name = last = shorter;
    XFI_TRY_DONE(st);
  }
done:
  xfi_free(last);
  return st;
}

static bool is_empty(const xfi_given *given)
{
  for (int d = 0; d < given->n_dims; d++)
    if (given->shape[d] == 0) return true;
  return false;
}

/* Is the name, in any spelling, that of the output layer of a model with tied weights, where it
 * means the embedding? */
static xfer_status find_tied(bool *is_tied, const xfer_locals *locals, const xfer_side *side,
                             const char *name)
{
  const json_t *list = side->framework->spellings;
  int64_t tied = 0;

  *is_tied = false;
  if (!xfi_scope_find(&locals->refit->model->scope, "tied", 4, &tied) || tied == 0) return XFER_OK;
  *is_tied = xfi_doc_lists(side->framework->tied_names, name);
  for (size_t i = 0; i < json_array_size(list) && !*is_tied; i++) {
    char *other = NULL;

    XFI_TRY(xfi_glob_rename(&other, xfi_doc_text(json_array_get(list, i), 0),
                            xfi_doc_text(json_array_get(list, i), 1), name));
    *is_tied = other != NULL && xfi_doc_lists(side->framework->tied_names, other);
    xfi_free(other);
  }
  return XFER_OK;
}

static bool is_made(const xfer_locals *locals, int side, const char *name)
{
  for (size_t i = 0; i < locals->n; i++) {
    const xfi_local_tensor *local = &locals->at[i];

    if (local->side == side && local->made != NULL && strcmp(local->made, name) == 0) return true;
  }
  return false;
}

static void format_shape(char *text, size_t size, const int64_t *shape, int n_dims)
{
  xfi_text out;

  xfi_text_fixed(&out, text, size);
  xfi_text_printf(&out, "[");
  for (int d = 0; d < n_dims; d++)
    xfi_text_printf(&out, "%s%lld", d > 0 ? ", " : "", (long long)shape[d]);
  xfi_text_printf(&out, "]");
}

/* Joins a dim of *size and *stride (NULL: dense) with the next one. Returns false if there is a gap
 * between them or the size overflows. A dim of one element may have any stride. */
static bool join_next(int64_t *size, int64_t *stride, int64_t next, int64_t step)
{
  int64_t pitch = 0;

  if (stride != NULL && *size != 1 && next != 1 &&
      (!xfi_imul_fits(step, next, &pitch) || *stride != pitch))
    return false;
  if (stride != NULL && next != 1) *stride = step;
  return *size >= 0 && next >= 0 && xfi_imul_fits(*size, next, size);
}

/* Joins dims until there are as many as the local tensor has; for example, blocks and the bytes in
 * them are the columns of packed weights. If dims cannot be joined, the shape does not fit. */
static int join_dims(int64_t *shape, int64_t *strides, int n_dims, const xfi_local_tensor *local)
{
  int n = 0;

  if (n_dims == 0 && local->n_dims == 1) { /* a number may have no dim or one dim of one element */
    shape[0] = 1;
    if (strides != NULL) strides[0] = (int64_t)xfi_dtype_size((int)local->dtype);
    return 1;
  }
  for (int d = 0; d < n_dims; d++) {
    const int64_t step = strides == NULL ? 0 : strides[d];

    if (n > 0 && n_dims - d > local->n_dims - n &&
        (n == local->n_dims || shape[n - 1] != local->shape[n - 1])) {
      if (!join_next(&shape[n - 1], strides == NULL ? NULL : &strides[n - 1], shape[d], step))
        return n_dims;
      continue;
    }
    shape[n] = shape[d];
    if (strides != NULL) strides[n] = step;
    n++;
  }
  return n;
}

static bool shape_is(const xfi_local_tensor *local, const int64_t *shape, int n_dims)
{
  if (local->n_dims != n_dims) return false;
  for (int d = 0; d < n_dims; d++) {
    if (local->shape[d] != shape[d]) return false;
  }
  return true;
}

static xfer_status refuse_shape(const xfi_local_tensor *local, const xfi_given *given)
{
  char want[128], have[128];

  format_shape(have, sizeof have, given->shape, given->n_dims);
  format_shape(want, sizeof want, local->shape, local->n_dims);
  return XFI_ERROR(XFER_ERR_MISMATCH, "\"%s\" is %s, its shape should be %s", given->name, have,
                   want);
}

/* Checks that the strides give each element an address within 2^62 bytes, since views are computed
 * from them. */
static xfer_status check_strides(const xfi_local_tensor *local, const char *name,
                                 const int64_t *strides)
{
  for (int d = 0; d < local->n_dims; d++) {
    int64_t reach = 0;

    XFI_CHECK(local->shape[d] < 2 || (xfi_imul_fits(strides[d], local->shape[d], &reach) &&
                                      reach >= -REACH_MAX && reach <= REACH_MAX),
              XFER_ERR_MISMATCH, "\"%s\": stride %lld in dim %d reaches past 2^62 bytes", name,
              (long long)strides[d], d);
  }
  return XFER_OK;
}

/* Checks that the tensor does not reach past either end of the address space, as one at MAP_FAILED
 * would. */
static xfer_status check_reach(const xfi_local_tensor *local, const char *name)
{
  uintptr_t below = (uintptr_t)local->base;
  uintptr_t above = UINTPTR_MAX - below;
  bool fits = above >= xfi_dtype_size((int)local->dtype);

  above -= fits ? xfi_dtype_size((int)local->dtype) : 0;
  for (int d = 0; d < local->n_dims && fits; d++) {
    const int64_t span = local->shape[d] < 2 ? 0 : local->strides[d] * (local->shape[d] - 1);
    uintptr_t *room = span < 0 ? &below : &above;
    const uintptr_t n_bytes = (uintptr_t)(span < 0 ? -span : span);

    fits = n_bytes <= *room;
    *room -= fits ? n_bytes : 0;
  }
  XFI_CHECK(fits, XFER_ERR_MISMATCH, "\"%s\" at %p reaches past the end of the address space", name,
            local->base);
  return XFER_OK;
}

/* Takes the tensor if it is as expected; else XFER_ERR_MISMATCH. */
static xfer_status accept(xfer_locals *locals, xfi_local_tensor *local, const xfi_given *given)
{
  int64_t sizes[XFER_MAX_DIMS] = {0}, steps[XFER_MAX_DIMS] = {0};
  xfi_local_tensor moved = *local;
  const bool dense = given->strides == NULL;
  const xfer_dtype dtype = given->dtype;
  int n;

  for (int d = 0; d < given->n_dims; d++) {
    sizes[d] = given->shape[d];
    if (!dense) steps[d] = given->strides[d];
  }
  n = join_dims(sizes, dense ? NULL : steps, given->n_dims, local);
  if (!shape_is(local, sizes, n)) return refuse_shape(local, given);
  /* Engines keep elements that torch had no type for as bytes: f8e8m0, and pairs of 4-bit values,
   * which are published as i8. */
  XFI_CHECK(dtype == local->dtype ||
                (dtype == XFER_U8 && (local->dtype == XFER_F8E8M0 || local->dtype == XFER_I8)),
            XFER_ERR_MISMATCH, "\"%s\" is %s, it should be %s", given->name,
            xfi_dtype_name((int)dtype), xfi_dtype_name((int)local->dtype));
  XFI_CHECK(given->base != NULL, XFER_ERR_MISMATCH, "\"%s\" has no address", given->name);
  if (!dense) XFI_TRY(check_strides(local, given->name, steps));
  moved.base = given->base;
  if (dense)
    xfi_local_make_dense(&moved);
  else
    memcpy(moved.strides, steps, (size_t)n * sizeof *steps);
  XFI_TRY(check_reach(&moved, given->name));
  if (local->wrong) drop_problems(locals, local);
  *local = moved;
  local->wrong = false;
  local->given = true;
  for (int i = 0; i < local->n_parts; i++)
    locals->moved[locals->parts[local->first_part + (size_t)i].tensor] = true;
  return XFER_OK;
}

/* Refuses a tensor that this rank does not have. */
static xfer_status refuse_unknown(const xfer_locals *locals, const xfer_side *side,
                                  const char *name)
{
  XFI_CHECK(strstr(name, "lora_") == NULL && strstr(name, ".adapter.") == NULL, XFER_ERR_MISMATCH,
            "\"%s\" is not merged into its weight", name);
  return XFI_ERROR(
      XFER_ERR_MISMATCH,
      "\"%s\" is not a tensor of rank %d in \"%s\": ignore it if it is no weight, else "
      "the model's table has it by another name or not at all",
      name, locals->rank, side->spec);
}

xfer_status xfi_locals_give(xfer_locals *locals, int side, const xfi_given *given)
{
  const xfer_side *s = locals->refit->sides[side].side;
  const char *name = given->name;
  const bool again = given->again;
  char *renamed = NULL;
  xfi_local_tensor *local = NULL;
  bool ignored, tied;
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(s != NULL, XFER_ERR_ARG, "\"%s\": this refit does not know that side", name);
  ignored = xfi_side_ignores(s, name);
  if (ignored || is_empty(given)) locals->n_ignored += !again;
  if (is_empty(given)) return XFER_OK;
  XFI_TRY_DONE(rename_given(&renamed, s, name));
  XFI_TRY_DONE(find_spelling(&local, locals, side, renamed));
  if (ignored) {
    if (local != NULL) local->left_out = true;
    goto done;
  }
  XFI_TRY_DONE(find_tied(&tied, locals, s, renamed));
  if (local != NULL && !local->unused) {
    XFI_CHECK_DONE(again || !local->given, XFER_ERR_MISMATCH, "\"%s\": \"%s\" is there twice", name,
                   local->name);
    XFI_CHECK_DONE(local->owned == NULL, XFER_ERR_MISMATCH, "\"%s\" is taken by the callback",
                   name);
    XFI_TRY_DONE(accept(locals, local, given));
  } else if (local != NULL || tied || is_made(locals, side, renamed)) {
    if (local == NULL && tied) locals->tied[side] = given->base;
    locals->n_ignored += !again;
  } else {
    XFI_TRY_DONE(refuse_unknown(locals, s, name));
  }
done:
  xfi_free(renamed);
  if (st == XFER_ERR_MISMATCH && !again) {
    st = add_problem(locals, local, false);
    if (st == XFER_OK && local != NULL) local->wrong = true;
  }
  return st;
}

/* Does the callback take this tensor? */
static bool is_taken(const xfer_locals *locals, const xfi_local_tensor *local)
{
  return !local->given && !local->unused && local->n_bytes != 0 && local->misc &&
         locals->misc_fn != NULL;
}

/* Returns a side's embedding or output layer if this rank has it and nothing else lies in its
 * tensor, else NULL. */
static const xfi_local_tensor *find_role(const xfer_locals *locals, int side, const char *role)
{
  const xfer_refit *refit = locals->refit;

  for (size_t t = 0; t < refit->n_tensors; t++) {
    const xfi_entry *e = &refit->model->entries[refit->origins[t].entry];
    const int64_t at = locals->local_of[side][t];

    if (at >= 0 && e->role != NULL && strcmp(e->role, role) == 0) return &locals->at[at];
  }
  return NULL;
}

/* Refuses a second name of the embedding that has memory of its own, since that memory would be
 * neither written nor read. In vLLM this happens if the checkpoint has both tensors and they
 * differ; in a trainer, if to_empty() separated the two. Different stages of a trainer may have
 * copies, which the trainer keeps equal. */
static xfer_status check_tied(xfer_locals *locals, int side)
{
  const xfer_side *s = locals->refit->sides[side].side;
  const xfi_local_tensor *embedding =
      locals->tied[side] == NULL ? NULL : find_role(locals, side, "embed");

  if (embedding == NULL || !embedding->given || embedding->base == locals->tied[side] ||
      (side == XFER_REFIT_TRAIN && s->pp > 1))
    return XFER_OK;
  xfi_set_error("the output layer of rank %d in \"%s\" has memory of its own beside \"%s\", though "
                "the configuration ties them: %s",
                locals->rank, s->spec, embedding->name,
                side == XFER_REFIT_GEN
                    ? "say tie_word_embeddings false where the trainer has both, or have the "
                      "engine tie them"
                    : "tie them, or ignore it where it is a copy");
  return add_problem(locals, NULL, true);
}

/* Refuses untied weights that an engine keeps in the same memory, since one would overwrite the
 * other. In SGLang this happens if the text configuration ties them and that of the whole model
 * does not. */
static xfer_status check_untied(xfer_locals *locals)
{
  const int side = XFER_REFIT_GEN;
  const xfi_local_tensor *embedding = find_role(locals, side, "embed");
  const xfi_local_tensor *head = find_role(locals, side, "head");

  if (embedding == NULL || head == NULL || head == embedding || !embedding->given || !head->given ||
      head->base == NULL || head->base != embedding->base || head->n_bytes == 0)
    return XFER_OK;
  xfi_set_error(
      "\"%s\" of rank %d in \"%s\" is the memory of \"%s\", though the configuration does "
      "not tie them: have it say tie_word_embeddings where they are one, or the engine "
      "not tie them",
      head->name, locals->rank, locals->refit->sides[side].side->spec, embedding->name);
  return add_problem(locals, NULL, true);
}

xfer_status xfi_locals_complete(xfer_locals *locals)
{
  drop_problems(locals, NULL);
  XFI_TRY(check_untied(locals));
  for (int side = 0; side < 2; side++)
    XFI_TRY(check_tied(locals, side));
  for (size_t i = 0; i < locals->n; i++) {
    const xfi_local_tensor *local = &locals->at[i];

    if (local->given || local->wrong || local->unused || local->n_bytes == 0 ||
        is_taken(locals, local))
      continue;
    xfi_set_error("\"%s\" of rank %d in \"%s\" is missing%s", local->name, locals->rank,
                  locals->refit->sides[local->side].side->spec,
                  local->left_out ? ": what was handed in matches a pattern that is ignored" : "");
    XFI_TRY(add_problem(locals, local, true));
  }
  return XFER_OK;
}

xfer_status xfi_locals_own(xfer_locals *locals, const xfi_host_memory *memory)
{
  for (size_t i = 0; i < locals->n; i++) {
    xfi_local_tensor *local = &locals->at[i];

    if (!is_taken(locals, local)) continue;
    XFI_TRY(memory->alloc(&local->owned, local->n_bytes));
    local->free = memory->free;
    local->base = local->owned;
    local->given = true;
  }
  return XFER_OK;
}

/* Models, sides and joins: checks arguments, calls src/refit. */
#include <xfer/refit.h>

#include "dtype.h"
#include "error.h"
#include "join.h"
#include "locals.h"
#include "names.h"
#include "options.h"
#include "report.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* ---- rules ---- */

xfer_status xfer_rules_load(xfer_rules **rules, const char *folder)
{
  XFI_NEED(rules);
  XFI_NEED(folder);
  return xfi_rules_load(rules, folder);
}

void xfer_rules_destroy(xfer_rules *rules)
{
  xfi_rules_destroy(rules);
}

/* ---- models ---- */

/* Is it a half-open range, or 0 to 0, which stands for all? */
static bool is_range(int32_t begin, int32_t end)
{
  return begin >= 0 && (end > begin || (end == 0 && begin == 0));
}

static xfer_status check_options(const xfer_model_options *o)
{
  XFI_CHECK(is_range(o->layers_begin, o->layers_end), XFER_ERR_ARG,
            "layers_begin is %d and layers_end %d; the end is one past the last, or both are 0",
            (int)o->layers_begin, (int)o->layers_end);
  XFI_CHECK(is_range(o->experts_begin, o->experts_end), XFER_ERR_ARG,
            "experts_begin is %d and experts_end %d; the end is one past the last, or both are 0",
            (int)o->experts_begin, (int)o->experts_end);
  XFI_CHECK(o->reserved == 0, XFER_ERR_UNSUPPORTED, "model option reserved is %#x: want 0",
            o->reserved);
  XFI_CHECK(o->n_renames >= 0 && (o->renames != NULL || o->n_renames == 0), XFER_ERR_ARG,
            "%lld renames", (long long)o->n_renames);
  for (int64_t i = 0; i < o->n_renames; i++) {
    XFI_CHECK(o->renames[2 * i] != NULL && o->renames[2 * i + 1] != NULL, XFER_ERR_ARG,
              "rename %lld is NULL", (long long)i);
    XFI_TRY(xfi_glob_check(o->renames[2 * i], o->renames[2 * i + 1]));
  }
  return XFER_OK;
}

xfer_status xfer_model_load(xfer_model **model, const char *path, const xfer_model_options *options)
{
  xfer_model_options o = XFER_MODEL_OPTIONS_INIT;
  xfer_model *m = NULL;
  struct stat info;
  xfer_status st = XFER_OK;

  XFI_NEED(model);
  XFI_NEED(path);
  XFI_TRY_DONE(XFI_OPTIONS_COPY(&o, options, xfer_model_options, rules));
  XFI_TRY_DONE(check_options(&o));
  XFI_TRY_DONE(xfi_model_create(&m, o.rules));
  XFI_CHECK_DONE(stat(path, &info) == 0, XFER_ERR_IO, "%s cannot be read: %s", path,
                 strerror(errno));
  XFI_TRY_DONE(S_ISDIR(info.st_mode) ? xfi_checkpoint_read(m, path, &o)
                                     : xfi_table_read(m, path, &o));
  XFI_TRY_DONE(xfi_model_finish(m, &o));
  *model = m;
  m = NULL;
done:
  xfi_model_destroy(m);
  return st;
}

void xfer_model_destroy(xfer_model *model)
{
  xfi_model_destroy(model);
}

xfer_status xfer_model_add(xfer_model *model, const char *name, xfer_dtype dtype,
                           const int64_t *shape, int n_dims)
{
  xfi_listed_tensor listed = {.pattern = name, .n_dims = n_dims, .dtype = dtype};

  XFI_NEED(model);
  XFI_NEED(name);
  XFI_NEED_WHERE(n_dims != 0, shape);
  XFI_CHECK(n_dims >= 0 && n_dims <= XFER_MAX_DIMS, XFER_ERR_ARG,
            "\"%s\" with %d dims; 0 to 8 are possible", name, n_dims);
  XFI_CHECK(!atomic_load(&model->frozen), XFER_ERR_STATE, "\"%s\": a refit was made of the model",
            name);
  XFI_CHECK(strchr(name, '{') == NULL, XFER_ERR_ARG, "\"%s\" is a pattern, not a name", name);
  XFI_CHECK(name[0] != '\0', XFER_ERR_ARG, "a tensor without a name");
  XFI_CHECK(xfi_dtype_size((int)dtype) > 0, XFER_ERR_ARG,
            "\"%s\": dtype %d, which is no xfer_dtype", name, (int)dtype);
  for (int d = 0; d < n_dims; d++) {
    XFI_CHECK(shape[d] >= 0, XFER_ERR_ARG, "\"%s\": size %lld of dim %d", name, (long long)shape[d],
              d);
    listed.shape[d] = shape[d];
  }
  return xfi_model_add(model, &listed);
}

/* ---- sides ---- */

xfer_status xfer_side_create(xfer_side **side, const char *spec, const xfer_side_options *options)
{
  XFI_NEED(side);
  XFI_NEED(spec);
  return xfi_side_create(side, spec, options);
}

void xfer_side_destroy(xfer_side *side)
{
  xfi_side_destroy(side);
}

int xfer_side_size(const xfer_side *side)
{
  return side == NULL ? 0 : side->size;
}

xfer_status xfer_side_coordinate(const xfer_side *side, const char *axis, int rank, int *coordinate)
{
  XFI_NEED(side);
  XFI_NEED(axis);
  XFI_NEED(coordinate);
  return xfi_side_coordinate(side, axis, rank, coordinate);
}

static xfer_status add_override(const char *who, xfer_side *side, xfi_override_kind kind,
                                const char *pattern, const char *to, int value)
{
  XFI_NEED_IN(who, 1, side);
  XFI_NEED_IN(who, 1, pattern);
  XFI_CHECK(atomic_load(&side->n_refs) == 1, XFER_ERR_STATE, "\"%s\": a refit was made of the side",
            side->spec);
  return xfi_side_add_override(side, kind, pattern, to, value);
}

xfer_status xfer_side_rename(xfer_side *side, const char *from, const char *to)
{
  XFI_NEED(from);
  XFI_NEED(to);
  return add_override(__func__, side, XFI_OVERRIDE_RENAME, from, to, 0);
}

xfer_status xfer_side_ignore(xfer_side *side, const char *pattern)
{
  return add_override(__func__, side, XFI_OVERRIDE_IGNORE, pattern, NULL, 0);
}

xfer_status xfer_side_place(xfer_side *side, const char *pattern, int dim)
{
  return add_override(__func__, side, XFI_OVERRIDE_PLACE, pattern, NULL, dim);
}

xfer_status xfer_side_give_whole(xfer_side *side, const char *pattern, int rank)
{
  int at;

  XFI_NEED(side);
  at = xfi_mesh_find(side->mesh, rank);
  XFI_CHECK(at >= 0, XFER_ERR_ARG,
            "rank %d is none of the side's %d ranks; want its number in the comm", rank,
            side->size);
  return add_override(__func__, side, XFI_OVERRIDE_WHOLE, pattern, NULL, at);
}

xfer_status xfer_side_dtype(xfer_side *side, const char *pattern, xfer_dtype dtype)
{
  XFI_CHECK(dtype == 0 || xfi_dtype_size((int)dtype) > 0, XFER_ERR_ARG, "%d is no element type",
            (int)dtype);
  return add_override(__func__, side, XFI_OVERRIDE_DTYPE, pattern, NULL, (int)dtype);
}

/* ---- joins ---- */

xfer_status xfer_refit_create(xfer_refit **refit, xfer_model *model, const xfer_side *train,
                              const xfer_side *gen)
{
  XFI_NEED(refit);
  XFI_NEED(model);
  XFI_CHECK(train != NULL || gen != NULL, XFER_ERR_ARG, "xfer_refit_create: neither side is known");
  return xfi_refit_create(refit, model, train, gen);
}

void xfer_refit_destroy(xfer_refit *refit)
{
  xfi_refit_destroy(refit);
}

const xfer_tensor *xfer_refit_tensors(const xfer_refit *refit, size_t *n_tensors)
{
  if (n_tensors != NULL) *n_tensors = refit == NULL ? 0 : refit->n_tensors;
  return refit == NULL ? NULL : refit->tensors;
}

int xfer_refit_ranks(const xfer_refit *refit)
{
  return refit == NULL ? 0 : xfi_refit_ranks(refit);
}

xfer_status xfer_refit_tensor_get(const xfer_refit *refit, size_t i, xfer_refit_tensor *tensor)
{
  XFI_NEED(refit);
  XFI_NEED(tensor);
  XFI_CHECK(i < refit->n_tensors, XFER_ERR_ARG, "no tensor %zu: the refit has %zu", i,
            refit->n_tensors);
  xfi_refit_tensor(refit, i, tensor);
  return XFER_OK;
}

xfer_status xfer_refit_report(const xfer_refit *refit, xfer_refit_report_data *report)
{
  xfer_refit_report_data r = XFER_REFIT_REPORT_INIT;

  XFI_NEED(refit);
  XFI_NEED(report);
  xfi_refit_report(refit, &r);
  return XFI_REPORT_COPY(report, &r, xfer_refit_report_data, largest_bytes);
}

/*
 * Operations in order, and as tensors: one for each send, one for each receive from another rank,
 * and one for both ends of what a rank sends to itself. Arrays of one shape share their two
 * layouts, and so are one class to the planner.
 */
#include "operations.h"

#include <stdio.h>

#include "alloc.h"
#include "dtype.h"
#include "error.h"
#include "intern.h"
#include "layout.h"
#include "vec.h"

static int by_peer(const void *a, const void *b)
{
  const xfi_op_key *x = a;
  const xfi_op_key *y = b;

  if (x->peer != y->peer) return x->peer < y->peer ? -1 : 1;
  return (x->id > y->id) - (x->id < y->id);
}

static xfer_status sort_list(xfi_op_list *list, const char *preposition)
{
  list->keys = xfi_calloc(list->n, sizeof *list->keys);
  XFI_CHECK(list->keys != NULL, XFER_ERR_NOMEM, "%zu operations", list->n);
  for (size_t i = 0; i < list->n; i++)
    list->keys[i] = (xfi_op_key){list->at[i].id, list->at[i].peer, (uint32_t)i};
  xfi_sort(list->keys, list->n, sizeof *list->keys, by_peer);
  for (size_t i = 1; i < list->n; i++)
    XFI_CHECK(by_peer(&list->keys[i - 1], &list->keys[i]) != 0, XFER_ERR_ARG,
              "operation %llu %s rank %d is given twice", (unsigned long long)list->keys[i].id,
              preposition, (int)list->keys[i].peer);
  return XFER_OK;
}

xfer_status xfi_operations_sort(xfi_operations *ops)
{
  XFI_TRY(sort_list(&ops->sends, "to"));
  return sort_list(&ops->recvs, "from");
}

void xfi_operations_free(xfi_operations *ops)
{
  xfi_free(ops->sends.keys);
  xfi_free(ops->recvs.keys);
}

/* ---- as tensors ---- */

typedef struct making {
  const xfi_operations *ops;
  xfi_op_tensors *made;
  xfi_interned known; /* of layouts */
  uint32_t *of_recv;  /* [n_recvs] the tensor of each receive from another rank */
} making;

/* The array as `rank` alone holds it, whole. */
static xfer_status make_layout(xfer_layout **layout, const xfer_operation *op, int rank)
{
  const xfer_placement whole = xfer_replicate();
  const int one = 1;
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  xfer_mesh *mesh = NULL;
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(xfi_mesh_create(&mesh, &one, 1, &rank));
  desc.mesh = mesh;
  desc.dtype = op->dtype;
  desc.n_dims = op->n_dims;
  desc.shape = op->shape;
  desc.placements = &whole;
  desc.n_placements = 1;
  XFI_TRY_DONE(xfi_layout_create(layout, &desc));
done:
  xfi_mesh_destroy(mesh);
  return st;
}

static xfer_status find_layout(const xfer_layout **layout, making *m, const xfer_operation *op,
                               int rank)
{
  int64_t key[XFER_MAX_DIMS + 3] = {rank, op->dtype, op->n_dims};
  uint32_t number;

  for (int d = 0; d < op->n_dims; d++)
    key[3 + d] = op->shape[d];
  number = xfi_intern_bytes(&m->known, key, sizeof key);
  if (number == m->made->n_layouts) {
    XFI_TRY(make_layout(&m->made->layouts[number], op, rank));
    m->made->n_layouts++;
  }
  *layout = m->made->layouts[number];
  return XFER_OK;
}

static xfer_status add_tensor(making *m, const xfer_operation *op, int src, int dst, uint32_t send,
                              uint32_t recv)
{
  xfi_op_tensors *made = m->made;
  const size_t t = made->n++;
  xfer_tensor *tensor = &made->tensors[t];

  (void)snprintf(made->names[t], sizeof *made->names, "operation %llu from rank %d to rank %d",
                 (unsigned long long)op->id, src, dst);
  tensor->name = made->names[t];
  made->operations[t][0] = send;
  made->operations[t][1] = recv;
  XFI_TRY(find_layout(&tensor->src, m, op, src));
  return find_layout(&tensor->dst, m, op, dst);
}

static xfer_status add_tensors(making *m)
{
  const xfi_op_list *sends = &m->ops->sends;
  const xfi_op_list *recvs = &m->ops->recvs;
  const int rank = m->ops->rank;

  for (size_t i = 0; i < sends->n; i++)
    XFI_TRY(add_tensor(m, &sends->at[i], rank, sends->at[i].peer, (uint32_t)i, XFI_NO_OPERATION));
  for (size_t i = 0; i < recvs->n; i++) {
    if (recvs->at[i].peer == rank) continue;
    m->of_recv[i] = (uint32_t)m->made->n;
    XFI_TRY(add_tensor(m, &recvs->at[i], recvs->at[i].peer, rank, XFI_NO_OPERATION, (uint32_t)i));
  }
  for (size_t s = xfi_op_list_find(sends, rank), r = xfi_op_list_find(recvs, rank);
       s < sends->n && sends->keys[s].peer == rank; s++, r++)
    m->made->operations[sends->keys[s].index][1] =
        recvs->keys[r].index; /* the ids are the same, as agreed */
  return XFER_OK;
}

/* Set the order of the plan: by element size, largest first, then by peer and id. */
static void set_order(making *m)
{
  const xfi_op_list *sends = &m->ops->sends;
  const xfi_op_list *recvs = &m->ops->recvs;
  uint32_t *next = m->made->order;

  for (int bytes = 8; bytes > 0; bytes /= 2) {
    for (size_t k = 0; k < sends->n; k++)
      if ((int)xfi_dtype_size(sends->at[sends->keys[k].index].dtype) == bytes)
        *next++ = sends->keys[k].index;
    for (size_t k = 0; k < recvs->n; k++)
      if (recvs->keys[k].peer != m->ops->rank &&
          (int)xfi_dtype_size(recvs->at[recvs->keys[k].index].dtype) == bytes)
        *next++ = m->of_recv[recvs->keys[k].index];
  }
}

xfer_status xfi_op_tensors_create(xfi_op_tensors *made, const xfi_operations *ops)
{
  const size_t most = ops->sends.n + ops->recvs.n;
  making m = {.ops = ops, .made = made, .of_recv = xfi_calloc(ops->recvs.n, sizeof *m.of_recv)};
  xfer_status st = XFER_OK;

  made->tensors = xfi_calloc(most, sizeof *made->tensors);
  made->order = xfi_calloc(most, sizeof *made->order);
  made->operations = xfi_calloc(most, sizeof *made->operations);
  made->names = xfi_calloc(most, sizeof *made->names);
  made->layouts = xfi_calloc(2 * most, sizeof(xfer_layout *));
  XFI_CHECK_DONE(made->tensors != NULL && made->order != NULL && made->operations != NULL &&
                     made->names != NULL && made->layouts != NULL && m.of_recv != NULL,
                 XFER_ERR_NOMEM, "%zu operations", most);
  XFI_TRY_DONE(xfi_interned_create(&m.known, 2 * most));
  XFI_TRY_DONE(add_tensors(&m));
  set_order(&m);
done:
  xfi_interned_free(&m.known);
  xfi_free(m.of_recv);
  return st;
}

void xfi_op_tensors_free(xfi_op_tensors *made)
{
  for (size_t i = 0; i < made->n_layouts; i++)
    xfi_layout_destroy(made->layouts[i]);
  xfi_free(made->tensors);
  xfi_free(made->order);
  xfi_free(made->operations);
  xfi_free(made->names);
  xfi_free(made->layouts);
}

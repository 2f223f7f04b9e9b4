/*
 * The join: for each entry of a model and each side its slot and its layouts, and from them the
 * tensors of a plan. An entry has one layout per pipeline stage, shared by all its layers there, so
 * that the work is that of a few dozen entries and not of 140,000 tensors.
 */
#ifndef XFI_JOIN_H
#define XFI_JOIN_H

#include "layout.h"
#include "side.h"

/* How a side holds an entry. */
typedef struct xfi_held {
  xfi_slot slot;
  xfer_layout **layouts; /* [pp] NULL where the stage has none of it */
  bool misc;             /* no tensor of the framework's: a named buffer or a callback takes it */
  bool whole;            /* whole, on every rank of the side */
  bool hook;             /* the framework makes other values of it */
} xfi_held;

/* Entries of a side that share their local tensors: by_name[begin .. end), in order of slots. */
typedef struct xfi_family {
  size_t begin;
  size_t end;
} xfi_family;

/* Ranks that hold an entry together: those of one stage, of two (tied embeddings), one rank, or
 * all. */
typedef struct xfi_holders {
  int n_stages;
  int stage[2];
  bool all;
  int one_rank; /* -1: not one alone */
} xfi_holders;

/* Entries share their meshes: a side has a handful for each stage. */
typedef struct xfi_known_mesh {
  xfi_holders holders;
  int n_axes;
  int shape[XFER_MAX_DIMS];
  xfer_mesh *mesh;
} xfi_known_mesh;

typedef struct xfi_meshes {
  xfi_known_mesh *at;
  size_t n;
  size_t capacity;
} xfi_meshes;

typedef struct xfi_joined {
  xfer_side *side; /* NULL: not known here */
  xfi_meshes meshes;
  int *stages;     /* [model->n_layers] */
  xfi_held *held;  /* [n_entries] */
  size_t *by_name; /* [n_entries] */
  xfi_family *families;
  size_t n_families;
} xfi_joined;

struct xfer_refit {
  xfer_model *model;
  xfi_joined sides[2]; /* xfer_side_of */
  xfer_tensor *tensors;
  size_t n_tensors;
  char **hf_names;  /* [n_tensors] of the checkpoint, where they are not the tensor's; else NULL */
  size_t *entry_of; /* [n_tensors] */
  int *layer_of;    /* [n_tensors] place in the entry's layers; -1: outside */
  int64_t **tensor_of; /* [n_entries][n_layers or 1] index of a tensor; -1: ignored */
  size_t n_ignored;
};

xfer_status xfi_refit_create(xfer_refit **refit, xfer_model *model, const xfer_side *train,
                             const xfer_side *gen);
void xfi_refit_destroy(xfer_refit *refit);

/* The stage of an entry's k-th layer (k = -1: outside the layers). */
int xfi_joined_stage(const xfi_joined *joined, const xfer_model *model, const xfi_entry *entry,
                     int k);
/* held.c: fills one entry of one side. */
xfer_status xfi_held_make(xfi_held *held, xfi_joined *joined, const xfer_model *model,
                          size_t entry);
void xfi_held_free(xfi_held *held, int pp);
/* families.. of local tensors: sorts, and checks that every slot is there once. */
xfer_status xfi_joined_pack(xfi_joined *joined, const xfer_model *model);

/* 1: the pattern fits every name the entry stands for; 0: none; else an error. */
xfer_status xfi_entry_matches(bool *matches, const xfi_entry *entry, const char *pattern);

#endif

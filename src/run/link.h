/*
 * Links: what two ranks that may map each other's memory tell each other at commit, and the
 * mapping.
 */
#ifndef XFI_LINK_H
#define XFI_LINK_H

#include "bytes.h"
#include "run.h"

enum { XFI_WHY_BYTES = 160, XFI_WAY_BYTES = XFI_WHY_BYTES + 64 };

/* In place of an index: nothing goes that way. */
#define XFI_NO_FLOW SIZE_MAX

/* An allocation of a peer. */
typedef struct xfi_remote {
  xfi_mem_handle handle;
  uint64_t base; /* the peer's address */
  char *mapped;  /* ours; NULL until it is mapped */
  bool is_mapped;
} xfi_remote;

/* One peer: both flows between us, and its half of each. */
typedef struct xfi_link {
  int rank;
  size_t send;             /* index in plan->moves->sends.peers; XFI_NO_FLOW: none */
  size_t recv;             /* likewise */
  bool pushes;             /* we copy what we send */
  bool pulls;              /* we copy what we receive */
  bool is_pushed;          /* the peer copies what we receive */
  bool is_pulled;          /* the peer copies what we send */
  char way[XFI_WAY_BYTES]; /* what is said of a flow that nobody copies */

  unsigned char *bytes; /* what the peer told us */
  size_t n_bytes;
  xfi_remote *remotes; /* remotes[0] holds the peer's flag page */
  size_t n_remotes;
  uint64_t page_offset;
  uint64_t *page; /* the peer's flags, mapped */
  xfi_bound
      *bounds; /* the peer's: sources of what it sends us, then destinations of what we send */
  uint32_t *bound_tensors;
  size_t *first_place;   /* [n_bounds + 1] of a bound's pieces in `places` */
  uint64_t (*places)[2]; /* (allocation, offset) of each piece */
  size_t n_places;
  size_t places_capacity;
  size_t n_bounds;
  size_t n_src_bounds;
} xfi_link;

typedef struct xfi_links {
  xfi_link
      *at; /* by rising distance (rank - ours) modulo n_ranks: everybody starts with another peer */
  size_t n;
} xfi_links;

/* Collective. Find peers in our domain, exchange descriptions, map, and decide who copies what.
 * `page` is this rank's flag page. */
xfer_status xfi_links_create(xfi_links *links, xfer_plan *plan, uint64_t *page);
void xfi_links_destroy(xfi_links *links, xfi_device *device);
/* How a flow travels, in words: that of index `peer` in the plan's sends or receives. */
const char *xfi_links_way(const xfi_links *links, const xfer_plan *plan, bool send, size_t peer);

/* ---- link_describe.c ---- */

/* What the peer has to know of our half of both flows. */
xfer_status xfi_link_describe(xfi_bytes *out, const xfer_plan *plan, const xfi_link *link,
                              const uint64_t *page);
/* Take apart what the peer told us: link->bytes. Addresses stay as places until they are mapped. */
xfer_status xfi_link_read(xfi_link *link);

/* The peer's half of a tensor, with addresses of ours: its source (of what it sends us) or
 * destination. Moves and bounds have one order: *cursor, 0 at first, is where the last one was
 * found. */
const xfi_bound *xfi_link_bound(const xfi_link *link, uint32_t tensor, bool source, size_t *cursor);

#endif

/* The private door: marks the few xfi_ functions that libxfer exports to libxfer_mpi and
 * libxfer_nccl.
 *
 * They are listed in src/xfer.map under XFER_PRIVATE_1; everything else that begins with xfi_ stays
 * hidden.
 */
#ifndef XFI_DOOR_H
#define XFI_DOOR_H

#define XFI_DOOR __attribute__((visibility("default")))

#endif

/* The private door: marks the few xfi_ functions that libxfer exports to libxfer_mpi and
 * libxfer_nccl of its own version.
 *
 * src/xfer.map lists them; everything else that begins with xfi_ stays hidden.
 */
#ifndef XFI_DOOR_H
#define XFI_DOOR_H

#define XFI_DOOR __attribute__((visibility("default")))

#endif

/* Marks the few xfi_ functions that libxfer exports to libxfer_mpi and libxfer_nccl of its own
 * version (api/plugin.h). src/xfer.map lists them; all else that begins with xfi_ stays hidden.
 */
#ifndef XFI_PLUGIN_API_H
#define XFI_PLUGIN_API_H

#define XFI_PLUGIN_API __attribute__((visibility("default")))

#endif

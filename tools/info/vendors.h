/* What the libraries of vendors say of themselves, each in the file named after it. */
#ifndef TOOLS_INFO_VENDORS_H
#define TOOLS_INFO_VENDORS_H

void info_cuda(void); /* versions, devices, who can reach whose memory */
void info_mpi(void);

#endif

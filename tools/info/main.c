/* xfer_info: which xfer this is, what it was built with, and what it finds here. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <xfer/xfer.h>

#include "args.h"

#ifdef XFER_INFO_MPI
static const char mpi[] = "mpi (libxfer_mpi)";
#else
static const char mpi[] = "no mpi";
#endif
#ifdef XFER_INFO_CUDA
static const char cuda[] = "cuda and nccl (libxfer_nccl)";
#else
static const char cuda[] = "no cuda";
#endif

/* Entries of a directory that are not hidden; -1: there is no such directory. */
static int count_entries(const char *path)
{
  DIR *dir = opendir(path);
  int n = 0;

  if (dir == NULL) return -1;
  for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
    n += entry->d_name[0] != '.';
  closedir(dir);
  return n;
}

static int parse(int argc, char **argv)
{
  const arg_option options[] = {{NULL, ARG_FLAG, NULL, NULL, 0, 0}};
  static const char *const examples[] = {"xfer_info", NULL};
  const arg_program program = {
      "xfer_info", "which xfer this is, what it was built with, and what it finds here",
      "Prints what belongs into the report of a fault.", options, examples};

  return args_parse(&program, argc, argv);
}

int main(int argc, char **argv)
{
  const int status = parse(argc, argv);

  if (status != ARGS_GO_ON) return status;
  const int gpus = count_entries("/proc/driver/nvidia/gpus");
  printf("xfer %s\n", xfer_version());
  printf("built with: threads, %s, %s\n", mpi, cuda);
  printf("here: %ld processors, %.1f GiB of memory, ", sysconf(_SC_NPROCESSORS_ONLN),
         (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1024.0 * 1024 * 1024));
  if (gpus < 0)
    printf("no NVIDIA driver\n");
  else
    printf("%d NVIDIA GPUs\n", gpus);
  return EXIT_SUCCESS;
}

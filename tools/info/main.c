/* xfer_info: which xfer this is, what it was built with, and what it finds here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <xfer/xfer.h>

#include "args.h"
#include "text.h"
#include "vendors.h"

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

extern char **environ;

/* The beginnings of the names of environment variables that change what xfer and the libraries
 * below it do. */
static const char *const PREFIXES[] = {"XFER_",     "NCCL_", "CUDA_",
                                       "OMPI_MCA_", "UCX_",  "SLURM_NTASKS"};
enum { N_PREFIXES = sizeof PREFIXES / sizeof *PREFIXES };

static void print_environment(void)
{
  int n = 0;

  printf("environment:\n");
  for (char **at = environ; *at != NULL; at++)
    for (size_t i = 0; i < N_PREFIXES; i++) {
      if (strncmp(*at, PREFIXES[i], strlen(PREFIXES[i])) != 0) continue;
      printf("  ");
      text_print(stdout, *at);
      printf("\n");
      n++;
    }
  if (n > 0) return;
  printf("  nothing of");
  for (size_t i = 0; i < N_PREFIXES; i++)
    printf("%s %s", i > 0 ? "," : "", PREFIXES[i]);
  printf("\n");
}

static int parse(int argc, char **argv)
{
  const arg_option options[] = {{NULL, ARG_FLAG, NULL, NULL, 0, 0}};
  static const char *const examples[] = {"xfer_info", NULL};
  const arg_program program = {
      "xfer_info",
      "which xfer this is, what it was built with, and what it finds here",
      "Prints what belongs into the report of a fault: versions, devices, who can reach whose "
      "memory, and the environment's variables that matter.",
      options,
      examples,
      NULL};

  return args_parse(&program, argc, argv);
}

int main(int argc, char **argv)
{
  const int status = parse(argc, argv);

  if (status != ARGS_GO_ON) return status;
  struct utsname machine;

  printf("xfer %s\n", xfer_version());
  printf("these programs were built with: threads, %s, %s\n", mpi, cuda);
  printf("here: %ld processors, %s of memory", sysconf(_SC_NPROCESSORS_ONLN),
         text_bytes((double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE)).at);
  if (uname(&machine) == 0) printf(", %s %s %s", machine.sysname, machine.release, machine.machine);
  printf("\n");
#ifdef XFER_INFO_MPI
  info_mpi();
#endif
#ifdef XFER_INFO_CUDA
  info_cuda();
#endif
  print_environment();
  return args_end(EXIT_SUCCESS);
}

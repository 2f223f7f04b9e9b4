/* Which MPI the library was built with. */
#include <stdio.h>
#include <string.h>

#include <mpi.h>

#include "text.h"
#include "vendors.h"

void info_mpi(void)
{
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;

  MPI_Get_library_version(text, &length); /* allowed before MPI_Init */
  text[strcspn(text, "\n")] = '\0';
  printf("mpi: ");
  text_print(stdout, text);
  printf("\n");
}

/* Sockets between processes of one host, and files that go over them. For sources with
 * _GNU_SOURCE. */
#ifndef XFI_SOCKET_H
#define XFI_SOCKET_H

#include "descriptor.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

/* A call, again where a signal ended it: a socket with a limit is interrupted by every one,
 * whatever the handler says. */
#define XFI_AGAIN(result, call)                                                                    \
  do {                                                                                             \
    (result) = (call);                                                                             \
  } while ((result) < 0 && errno == EINTR)

/* Of a name that is in no file system; the bytes of the address. */
static inline socklen_t xfi_socket_address(struct sockaddr_un *address, const char *name, size_t n)
{
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  memcpy(address->sun_path + 1, name, n);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

/* Is the other end a process of our user? */
static inline bool xfi_socket_is_same_user(int socket)
{
  struct ucred peer = {.uid = (uid_t)-1};
  socklen_t n = sizeof peer;

  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 && peer.uid == geteuid();
}

/* Room for one file in a message. */
typedef union xfi_file_room {
  struct cmsghdr head;
  char bytes[CMSG_SPACE(sizeof(int))];
} xfi_file_room;

/* Bytes, all or none, with a file beside them; -1: none. */
static inline bool xfi_socket_send(int socket, const void *bytes, size_t n_bytes, int file)
{
  xfi_file_room room = {.head = {.cmsg_len = CMSG_LEN(sizeof file),
                                 .cmsg_level = SOL_SOCKET,
                                 .cmsg_type = SCM_RIGHTS}};
  struct iovec part = {(void *)bytes, n_bytes};
  const struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = &room,
                                 .msg_controllen = file >= 0 ? sizeof room : 0};
  ssize_t n;

  memcpy(CMSG_DATA(&room.head), &file, sizeof file);
  XFI_AGAIN(n, sendmsg(socket, &message, MSG_NOSIGNAL));
  return n == (ssize_t)n_bytes;
}

/* What such a call sent: were there as many bytes? The file is the caller's to close all the same;
 * -1: none, with *is_lost where the system did not let us have it. Of two there is none. */
static inline bool xfi_socket_receive(int socket, void *bytes, size_t n_bytes, int flags, int *file,
                                      bool *is_lost)
{
  struct iovec part = {bytes, n_bytes};
  xfi_file_room room;
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = &room,
                           .msg_controllen = CMSG_LEN(sizeof *file)}; /* one, and no more */
  const struct cmsghdr *head;
  ssize_t n;

  *file = -1;
  XFI_AGAIN(n, recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC));
  head = n < 0 ? NULL : CMSG_FIRSTHDR(&message);
  *is_lost = n >= 0 && head == NULL && (message.msg_flags & MSG_CTRUNC) != 0;
  if (head != NULL && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
    memcpy(file, CMSG_DATA(head), sizeof *file);
    *file = xfi_descriptor_kept(*file);
    *is_lost = *file < 0;
  }
  if (*file >= 0 && (message.msg_flags & MSG_CTRUNC) != 0) {
    (void)close(*file);
    *file = -1;
  }
  return n == (ssize_t)n_bytes;
}

#endif

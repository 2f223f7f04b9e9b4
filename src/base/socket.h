/* Sockets between processes of one host, and files that go over them. For sources with
 * _GNU_SOURCE. */
#ifndef XFI_SOCKET_H
#define XFI_SOCKET_H

#include "descriptor.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Repeats a call that a signal interrupted: a socket with a timeout is interrupted by any, even
 * with SA_RESTART. */
#define XFI_AGAIN(result, call)                                                                    \
  do {                                                                                             \
    (result) = (call);                                                                             \
  } while ((result) < 0 && errno == EINTR)

/* Bytes of a name in the abstract namespace, which is outside all file systems; no 0 at the end. */
enum { XFI_SOCKET_NAME_BYTES = 32 };

/* Sets *address to that of a name, and returns its size in bytes. */
static inline socklen_t xfi_socket_address(struct sockaddr_un *address,
                                           const char name[XFI_SOCKET_NAME_BYTES])
{
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  memcpy(address->sun_path + 1, name, XFI_SOCKET_NAME_BYTES);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + XFI_SOCKET_NAME_BYTES);
}

/* Makes a socket of a type and flags as socket() takes them; -1, with errno, if that fails. */
static inline int xfi_socket_make(int type)
{
  return xfi_descriptor_kept(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
}

/* Listens at a random name, with room for `backlog` connections that nobody has accepted; -1, with
 * errno, if that fails. */
static inline int xfi_socket_listen(int type, int backlog, char name[XFI_SOCKET_NAME_BYTES])
{
  unsigned char random[XFI_SOCKET_NAME_BYTES / 2];
  struct sockaddr_un address;
  int made;

  if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return -1;
  for (size_t i = 0; i < sizeof random; i++) {
    name[2 * i] = "0123456789abcdef"[random[i] >> 4];
    name[2 * i + 1] = "0123456789abcdef"[random[i] & 15];
  }
  made = xfi_socket_make(type);
  if (made >= 0 &&
      bind(made, (struct sockaddr *)&address, xfi_socket_address(&address, name)) == 0 &&
      listen(made, backlog) == 0)
    return made;
  return xfi_descriptor_drop(made);
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

/* Sends bytes, all or none, together with a file, unless `file` is -1. */
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

/* Receives what xfi_socket_send() sent. False: there were fewer bytes. The caller closes *file
 * either way. It is -1 if none or two came, or if the system could not give us one (*is_lost). */
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

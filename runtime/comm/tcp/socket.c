/* TCP sockets: listens as rank 0, and connects to rank 0. */
#include "runtime/comm/tcp/meet.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { BACKLOG = 1024 };
const char tcp_magic[8] = {'g', 'r', 'a', 'd', 'c', 'T', 'C', 'P'};

static bool
poll_once(int fd, short events, double seconds)
{
	struct pollfd p = {.fd = fd, .events = events};
	double end = seconds_now() + seconds;

	for (;;) {
		double left = end - seconds_now();
		int n = poll(&p, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
		if (n > 0)
			return true;
		if (left <= 0)
			return false;
	}
}

bool
socket_wait(int fd, double seconds)
{
	return poll_once(fd, POLLIN, seconds);
}

/* Sets a socket's options. TCP_NODELAY, because messages are small and other ranks wait for them. SO_KEEPALIVE, so that a
 * vanished host is noticed eventually. */
static void
set_options(int fd)
{
	int on = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

/* ---- listening */
static bool
is_this_host_only(const char *host)
{
	return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
	       strncmp(host, "127.", 4) == 0;
}

/* Returns the socket; -1 on failure, with errno set. */
static int
listen_at(const struct addrinfo *at)
{
	int on = 1, off = 0;
	int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (at->ai_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	int error = errno;
	close(fd);
	errno = error;
	return -1;
}

/* Listens at every address of this host, or only at the host's name if other hosts cannot use it. IPv6 is tried first, because
 * it accepts IPv4 as well. */
static int
listen_at_port(const char *host, int port)
{
	static const int families[] = {AF_INET6, AF_INET};
	int fd = -1, error = EADDRNOTAVAIL;
	char number[16];

	snprintf(number, sizeof(number), "%d", port);
	for (int i = 0; i < COUNT(families) && fd < 0; i++) {
		struct addrinfo *all = NULL, hints = {.ai_family = families[i],
		                                      .ai_socktype = SOCK_STREAM,
		                                      .ai_flags = AI_PASSIVE};
		if (getaddrinfo(is_this_host_only(host) ? host : NULL, number, &hints, &all))
			continue;
		fd = listen_at(all);
		if (fd < 0)
			error = errno;
		freeaddrinfo(all);
		if (fd < 0 && error == EADDRINUSE)
			break;
	}
	errno = error;
	return fd;
}

static int
port_of(int fd)
{
	struct sockaddr_storage at;
	socklen_t n = sizeof(at);

	if (getsockname(fd, (struct sockaddr *)&at, &n))
		return 0;
	return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
	                                      : ((struct sockaddr_in *)&at)->sin_port);
}

Status
socket_listen(const TcpPlace *place, int *fd, int *port)
{
	int n = place->file[0] ? 1 : place->n_ports;

	for (int i = 0; i < n; i++) {
		*fd = listen_at_port(place->host, place->file[0] ? 0 : place->port + i);
		if (*fd < 0)
			continue;
		*port = port_of(*fd);
		return NULL;
	}
	if (n == 1)
		return status_error(EXIT_COMM, "rank 0 cannot listen at port %d: %s", place->port,
		                    strerror(errno));
	return status_error(EXIT_COMM,
	                    "rank 0 cannot listen at any port from %d to %d: %s: "
	                    "GRADC_RENDEZVOUS=tcp://HOST:PORT names another one",
	                    place->port, place->port + n - 1, strerror(errno));
}

int
socket_accept(int listener, char from[HOST_BYTES])
{
	struct sockaddr_storage at;
	socklen_t n = sizeof(at);
	int fd = accept4(listener, (struct sockaddr *)&at, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0)
		return -1;
	if (getnameinfo((struct sockaddr *)&at, n, from, HOST_BYTES, NULL, 0, NI_NUMERICHOST))
		strcpy(from, "somebody");
	set_options(fd);
	return fd;
}

/* ---- connecting */
int
socket_connect(const struct addrinfo *to, double seconds, const char **why)
{
	int error = 0, fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	socklen_t n = sizeof(error);

	if (fd < 0) {
		*why = strerror(errno);
		return -1;
	}
	set_options(fd);
	if (connect(fd, to->ai_addr, to->ai_addrlen) && errno != EINPROGRESS)
		error = errno;
	else if (!poll_once(fd, POLLOUT, seconds))
		error = ETIMEDOUT;
	else
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n);
	if (!error)
		return fd;
	close(fd);
	*why = strerror(error);
	return -1;
}

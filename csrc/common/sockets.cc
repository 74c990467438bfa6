#include "common/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "common/errors.h"

namespace autotune {

namespace {

[[noreturn]] void fail(const char* call) {
  throw EngineError(std::string(call) + " failed: " + std::strerror(errno));
}

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
};

bool parse(const std::string& host, int port, Address& address) {
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.bytes);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    address.length = sizeof *v4;
    return true;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.bytes);
  if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) != 1) return false;
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(static_cast<uint16_t>(port));
  address.length = sizeof *v6;
  return true;
}

// A socket that is bound to no address in particular; -1: this host has no such family.
int bound(const sockaddr* address, socklen_t length) {
  const int fd = ::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int off = 0;
  if (address->sa_family == AF_INET6) {
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(fd, address, length) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

std::vector<std::string> names_in(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream stream(text);
  for (std::string name; std::getline(stream, name, ',');) {
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

// "" for an address that means nothing elsewhere without the name of an interface.
std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(&v6)) inet_ntop(AF_INET6, &v6, text, sizeof text);
  }
  return text;
}

struct InterfaceAddress {
  std::string interface;
  std::string text;
  bool is_v6 = false;
  bool is_loopback = false;
};

// Of all interfaces that are up, in the kernel's order.
std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) fail("getifaddrs");
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (!(entry->ifa_flags & IFF_UP) || !entry->ifa_addr) continue;
    const std::string text = text_of(entry->ifa_addr);
    if (text.empty()) continue;
    found.push_back({entry->ifa_name, text, entry->ifa_addr->sa_family == AF_INET6,
                     (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  freeifaddrs(list);
  return found;
}

// Those of the first one of `names` that has any.
std::vector<InterfaceAddress> restricted(const std::vector<InterfaceAddress>& all,
                                         const std::vector<std::string>& names,
                                         const std::string& interfaces) {
  for (const std::string& name : names) {
    std::vector<InterfaceAddress> found;
    std::copy_if(all.begin(), all.end(), std::back_inserter(found),
                 [&](const auto& each) { return each.interface == name; });
    if (!found.empty()) return found;
  }
  std::set<std::string> known;
  for (const auto& each : all) known.insert(each.interface);
  std::string here;
  for (const std::string& name : known) here += (here.empty() ? "" : ", ") + name;
  throw EngineError("network interface: expected one that is up and has an address, got " +
                    interfaces + "; this host has " + here);
}

}  // namespace

int listen_tcp(int& port) {
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_any;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_ANY);
  int fd = bound(reinterpret_cast<sockaddr*>(&v6), sizeof v6);
  if (fd < 0) fd = bound(reinterpret_cast<sockaddr*>(&v4), sizeof v4);
  if (fd < 0) fail("bind");
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    const int error = errno;
    ::close(fd);
    errno = error;
    fail("listen");
  }
  // The port lies at the same place in both families.
  port = ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  return fd;
}

std::vector<std::string> own_addresses(const std::string& interfaces) {
  std::vector<InterfaceAddress> all = interface_addresses();
  const std::vector<std::string> names = names_in(interfaces);
  if (!names.empty()) all = restricted(all, names, interfaces);
  std::stable_sort(all.begin(), all.end(), [](const auto& one, const auto& other) {
    return std::pair(one.is_loopback, one.is_v6) < std::pair(other.is_loopback, other.is_v6);
  });
  std::vector<std::string> texts;
  for (const auto& each : all) texts.push_back(each.text);
  return texts;
}

int begin_connect(const std::string& host, int port) {
  Address address;
  if (!parse(host, port, address)) return -1;
  const int fd = ::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  configure_tcp(fd);
  const auto* name = reinterpret_cast<const sockaddr*>(&address.bytes);
  if (::connect(fd, name, address.length) == 0 || errno == EINPROGRESS) return fd;
  ::close(fd);
  return -1;
}

void configure_tcp(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const int idle_s = 6, interval_s = 3, probes = 6;
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

bool is_reached(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return true;
  const bool is_unanswered = info.tcpi_unacked > 0 || info.tcpi_probes >= 2;
  return !is_unanswered || std::chrono::milliseconds(info.tcpi_last_ack_recv) < lost_after;
}

bool is_paced(int fd) {
  char name[16] = {};
  socklen_t size = sizeof name - 1;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) != 0) return false;
  return std::string(name).rfind("bbr", 0) == 0;
}

bool is_same_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == ::geteuid();
}

}  // namespace autotune

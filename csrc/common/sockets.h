// TCP sockets as this engine uses them: where a host is reached, and whether it still is.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace autotune {

// Listens on every address of this host, IPv6 and IPv4; never blocks. Throws EngineError.
int listen_tcp(int& port);

// Numeric IPv4 and IPv6 addresses by which other hosts may reach this one, loopback last (it is
// right only for ranks in another name space of it). `interfaces`: names, separated by commas; the
// first one that is up here and has an address is the only one; empty: all that are up. Throws
// EngineError where none of them is there.
std::vector<std::string> own_addresses(const std::string& interfaces);

// A socket that is being connected to a numeric address and never blocks; -1: no such address, or
// this host has no way to it.
int begin_connect(const std::string& host, int port);

// Small messages leave at once, and an idle connection is probed; who looks at what comes of it is
// `is_reached`. TCP_USER_TIMEOUT would also end connections to stopped processes whose windows are
// full.
void configure_tcp(int fd);

// A link that comes back within some seconds is no lost host; nor is a train of retransmissions,
// which are 6 s apart by then.
constexpr std::chrono::seconds lost_after{15};

// False once the kernel at the other end has left bytes or probes unanswered for `lost_after`.
// Where a stopped process has left its window closed, its kernel answers the probes. Nothing is
// unacknowledged, but probed for, where the connection is idle, where this host itself has no way
// to the other one, and where the window is closed.
bool is_reached(int fd);

// The kernel paces this connection by the rate that it believes in (BBR), and not by what fits into
// the network: several of them side by side leave a part of a link unused.
bool is_paced(int fd);

// Both ends of this Unix socket are the same user's.
bool is_same_user(int fd);

}  // namespace autotune

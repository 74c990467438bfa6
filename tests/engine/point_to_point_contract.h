// What every transport promises (comm/point_to_point.h), as checks that each rank of it runs.
//
// All of them leave the transport as it was, so that one follows another; none needs more ranks
// than two.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "check.h"
#include "comm/p2p/backoff.h"
#include "comm/point_to_point.h"

namespace autotune::contract {

inline void finish(PointToPoint& transport) {
  const WaitHook no_hook = [] {};
  complete(transport, no_hook);
}

inline std::vector<int> others(const PointToPoint& transport) {
  std::vector<int> ranks;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer != transport.rank()) ranks.push_back(peer);
  }
  return ranks;
}

// Bytes that say whom they are of and for, and which message they are.
inline std::vector<uint8_t> letter(int from, int to, int number, int64_t bytes) {
  std::vector<uint8_t> text(static_cast<size_t>(bytes));
  auto state = static_cast<uint32_t>(from * 7919 + to * 104729 + number * 1299709 + 1);
  for (uint8_t& byte : text) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return text;
}

constexpr int64_t lengths[] = {0,       1,         7, 4096, 65'535,    65'536,    65'537,
                               262'144, 1'000'003, 0, 3,    2'097'152, 5'000'001, 16'777'216 + 1};

// Every rank to every other one, both ways at once.
inline void messages_of_any_length_arrive_whole(PointToPoint& transport) {
  for (const int64_t bytes : lengths) {
    std::vector<std::vector<uint8_t>> sent, received;
    for (const int peer : others(transport)) {
      sent.push_back(letter(transport.rank(), peer, 0, bytes));
      received.emplace_back(static_cast<size_t>(bytes), uint8_t{0xee});
    }
    size_t place = 0;
    for (const int peer : others(transport)) {
      transport.receive(peer, received[place].data(), bytes);
      transport.send(peer, sent[place].data(), bytes);
      ++place;
    }
    finish(transport);
    place = 0;
    for (const int peer : others(transport)) {
      CHECK(received[place++] == letter(peer, transport.rank(), 0, bytes));
    }
  }
}

// Long and short ones in turn, posted together: a short one never arrives in a long one's place.
inline void messages_of_a_pair_arrive_in_the_order_in_which_they_were_posted(
    PointToPoint& transport) {
  constexpr int count = 40;
  const auto length = [](int number) { return lengths[static_cast<size_t>(number) % 13]; };
  std::vector<std::vector<uint8_t>> sent, received;
  for (int number = 0; number < count; ++number) {
    for (const int peer : others(transport)) {
      sent.push_back(letter(transport.rank(), peer, number, length(number)));
      received.emplace_back(static_cast<size_t>(length(number)));
    }
  }
  size_t place = 0;
  for (int number = 0; number < count; ++number) {
    for (const int peer : others(transport)) {
      transport.send(peer, sent[place].data(), length(number));
      transport.receive(peer, received[place].data(), length(number));
      ++place;
    }
  }
  finish(transport);
  place = 0;
  for (int number = 0; number < count; ++number) {
    for (const int peer : others(transport)) {
      CHECK(received[place++] == letter(peer, transport.rank(), number, length(number)));
    }
  }
}

// One rank is far ahead of the other: what it sends waits for its receives.
inline void a_message_may_be_sent_long_before_it_is_expected(PointToPoint& transport) {
  constexpr int count = 30;
  constexpr int64_t bytes = 300'001;
  if (transport.rank() > 1) return;
  const int peer = 1 - transport.rank();
  std::vector<std::vector<uint8_t>> texts;
  if (transport.rank() == 0) {
    for (int number = 0; number < count; ++number) {
      texts.push_back(letter(0, 1, number, bytes));
    }
    for (const auto& text : texts) transport.send(peer, text.data(), bytes);
    finish(transport);
    uint8_t answer = 0;
    transport.receive(peer, &answer, 1);
    finish(transport);
    CHECK_EQUAL(int(answer), 42);
    return;
  }
  for (int number = 0; number < count; ++number) {
    std::vector<uint8_t> text(static_cast<size_t>(bytes));
    transport.receive(peer, text.data(), bytes);
    finish(transport);  // one at a time
    CHECK(text == letter(0, 1, number, bytes));
  }
  const uint8_t answer = 42;
  transport.send(peer, &answer, 1);
  finish(transport);
}

// One peer after the other, in the order that suits least: nobody's message is taken for another's.
inline void messages_of_different_ranks_are_not_mixed_up(PointToPoint& transport) {
  constexpr int64_t bytes = 200'000;
  std::vector<int> peers = others(transport);
  std::vector<std::vector<uint8_t>> sent;
  for (const int peer : peers) sent.push_back(letter(transport.rank(), peer, 5, bytes));
  for (size_t i = 0; i < peers.size(); ++i) transport.send(peers[i], sent[i].data(), bytes);
  std::vector<std::vector<uint8_t>> received(peers.size());
  for (size_t i = peers.size(); i-- > 0;) {
    received[i].resize(static_cast<size_t>(bytes));
    transport.receive(peers[i], received[i].data(), bytes);
  }
  finish(transport);
  for (size_t i = 0; i < peers.size(); ++i) {
    CHECK(received[i] == letter(peers[i], transport.rank(), 5, bytes));
  }
}

inline void small_messages_in_a_row_do_not_overtake_each_other(PointToPoint& transport) {
  for (int32_t round = 0; round < 2000; ++round) {
    const int32_t sent = round * 16 + transport.rank();
    std::vector<int32_t> received(static_cast<size_t>(transport.size()), -1);
    for (const int peer : others(transport)) {
      transport.receive(peer, &received[static_cast<size_t>(peer)], sizeof(int32_t));
      transport.send(peer, &sent, sizeof sent);
    }
    finish(transport);
    for (const int peer : others(transport)) {
      CHECK_EQUAL(received[static_cast<size_t>(peer)], round * 16 + peer);
    }
  }
}

inline void with_nothing_posted_all_is_complete(PointToPoint& transport) {
  for (int i = 0; i < 1000; ++i) CHECK(transport.test_all());
}

using Check = void (*)(PointToPoint&);

inline const std::vector<std::pair<const char*, Check>>& checks() {
  static const std::vector<std::pair<const char*, Check>> all{
      {"with nothing posted all is complete", with_nothing_posted_all_is_complete},
      {"messages of any length arrive whole", messages_of_any_length_arrive_whole},
      {"messages of a pair arrive in the order in which they were posted",
       messages_of_a_pair_arrive_in_the_order_in_which_they_were_posted},
      {"a message may be sent long before it is expected",
       a_message_may_be_sent_long_before_it_is_expected},
      {"messages of different ranks are not mixed up",
       messages_of_different_ranks_are_not_mixed_up},
      {"small messages in a row do not overtake each other",
       small_messages_in_a_row_do_not_overtake_each_other},
  };
  return all;
}

}  // namespace autotune::contract

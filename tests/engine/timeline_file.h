// Timeline files under test.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

namespace autotune {

// A path of its own, removed at the end.
struct TemporaryFile {
  explicit TemporaryFile(const char* pattern = "/tmp/timeline-test-XXXXXX") {
    std::strcpy(path, pattern);
    close(mkstemp(path));
  }
  ~TemporaryFile() { unlink(path); }
  int64_t size() const {
    struct stat about;
    return stat(path, &about) == 0 ? about.st_size : -1;
  }
  std::string read() const {
    std::ifstream file(path);
    std::stringstream content;
    content << file.rdbuf();
    return content.str();
  }
  char path[32];
};

inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

inline int64_t number_after(const std::string& line, const std::string& key) {
  const size_t at = line.find(key);
  return at == std::string::npos ? -1 : std::atoll(line.c_str() + at + key.size());
}

// One event but metadata.
struct TimelineEvent {
  char phase;  // it is B, E, X or i
  int64_t ts;
  std::pair<int64_t, int64_t> track;  // it is pid and tid
  std::string name;

  // Tensors' second tracks are written when their times are known.
  bool on_gpu() const { return track.first > 0 && track.second == 1; }
};

inline std::vector<TimelineEvent> events_of(const std::string& text) {
  std::vector<TimelineEvent> events;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find("\"ph\": \"");
    if (at == std::string::npos || line[at + 7] == 'M') continue;
    const std::string key = "\"name\": \"";
    const size_t name = line.find(key);
    events.push_back({line[at + 7],
                      number_after(line, "\"ts\": "),
                      {number_after(line, "\"pid\": "), number_after(line, "\"tid\": ")},
                      name == std::string::npos
                          ? ""
                          : line.substr(name + key.size(),
                                        line.find('"', name + key.size()) - name - key.size())});
  }
  return events;
}

// What every timeline must be: an array, times that never go back, ends that have begins.
inline void check_structure(const std::string& text, bool closed) {
  const size_t last = text.find_last_not_of(' ');  // pages are filled while it is written
  CHECK(text.front() == '[' && last != std::string::npos && text[last] == ']');
  CHECK(!closed || last == text.size() - 1);
  std::map<std::pair<int64_t, int64_t>, int> depth;
  std::map<std::pair<int64_t, int64_t>, int64_t> last_on_gpu;
  int64_t last_ts = 0;
  for (const TimelineEvent& event : events_of(text)) {
    int64_t& before = event.on_gpu() ? last_on_gpu[event.track] : last_ts;
    CHECK(event.ts >= before && event.track.first >= 0 && event.track.second >= 0);
    before = event.ts;
    if (event.phase == 'B') ++depth[event.track];
    if (event.phase == 'E') CHECK(--depth[event.track] >= 0);
  }
  for (const auto& [track, open] : depth) CHECK(!closed || open == 0);
}

}  // namespace autotune

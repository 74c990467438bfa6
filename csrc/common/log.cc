#include "common/log.h"

#include <unistd.h>

#include <array>
#include <atomic>

namespace autotune {

namespace {
std::atomic<int> minimum_level{static_cast<int>(LogLevel::warning)};
std::atomic<int> log_rank{0};
constexpr std::array<const char*, 6> level_names{"TRACE",   "DEBUG", "INFO",
                                                 "WARNING", "ERROR", "FATAL"};
}  // namespace

void configure_log(LogLevel level, int rank) {
  minimum_level = static_cast<int>(level);
  log_rank = rank;
}

void log(LogLevel level, const std::string& text) {
  if (static_cast<int>(level) < minimum_level) return;
  // One write per line, so that lines of several ranks do not mix.
  const std::string line = std::string("[horovod] ") + level_names[static_cast<size_t>(level)] +
                           " rank " + std::to_string(log_rank) + ": " + text + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace autotune

// One line per event on standard error: "[horovod] WARNING rank 1: text".
#pragma once

#include <string>

namespace autotune {

enum class LogLevel : int { trace = 0, debug = 1, info = 2, warning = 3, error = 4, fatal = 5 };

// Set once at engine start; lines below `level` are dropped.
void configure_log(LogLevel level, int rank);

void log(LogLevel level, const std::string& text);

}  // namespace autotune

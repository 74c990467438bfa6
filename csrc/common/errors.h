// Errors that leave the engine. Everything else is a broken invariant.
#pragma once

#include <stdexcept>
#include <string>

namespace autotune {

// An operation failed on all ranks, a rank died, or the engine was shut down.
class EngineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A request was refused before negotiation; the engine goes on.
class InvalidRequest : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace autotune

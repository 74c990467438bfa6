// The version of what ranks say to each other: frames, messages in them, the way to connect.
#pragma once

namespace autotune {

// It is compared at init, so that two versions never talk. Raise it with every change of the
// encoding, which the test `the_encoding_of_messages_is_that_of_their_format` tells, and of how an
// operation's bytes are cut into messages.
constexpr int message_format = 5;

}  // namespace autotune

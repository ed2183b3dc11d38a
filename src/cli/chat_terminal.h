// Lines from a terminal (or a pipe) to a conversation; Ctrl-C stops the reply and not the program.
#pragma once

#include <string_view>

#include "cli/chat_session.h"

namespace verbatim::cli {

// Reads lines from `input` until its end or /quit. While it runs, SIGINT interrupts the reply being written, or
// discards the line being typed; it never ends the program. Prompts are written to `output` if input is a terminal.
// Throws Error(kIo). One at a time in a process.
void run_chat(ChatSession& session, int input, int output);

// Writes everything, whatever signals arrive. Throws Error(kIo).
void write_all(int output, std::string_view text);

}  // namespace verbatim::cli

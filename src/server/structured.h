// Structured output: the token mask that a request's form of reply asks for.
#pragma once

#include "engine/request.h"
#include "server/generation.h"
#include "text/grammar/grammar.h"
#include "text/reply_vocabulary.h"

namespace verbatim::server {

// Compiles grammars and keeps them. May be used from any number of threads.
class StructuredOutputs {
 public:
  StructuredOutputs(text::TokenTablePointer tokens, text::ReplyVocabulary vocabulary, std::vector<int32_t> eos,
                    text::GrammarLimits limits);

  // Null if the request asks for no form. Throws ApiFailure, 400: a schema that is malformed, not supported (named),
  // too large or too slow to compile, or that no reply satisfies; a form together with ignore_eos.
  engine::TokenMask mask(const ChatRequest& request, text::ReplyStart start);
  engine::TokenMask mask(const Generation& generation);  // of a completion: from its first token

 private:
  text::GrammarPointer form(const StructuredOutput& structured);
  text::GrammarPointer calls(const ChatRequest& request);
  text::MaskOptions options(text::ReplyStart start) const;

  const text::TokenTablePointer tokens_;
  const text::ReplyVocabulary vocabulary_;
  const std::vector<int32_t> eos_;
  const text::GrammarLimits limits_;
  text::GrammarCache cache_;
};

}  // namespace verbatim::server

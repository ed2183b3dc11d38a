#include "text/reply_vocabulary.h"

#include "base/error.h"
#include "text/tokenizer.h"

namespace verbatim::text {

ReplyVocabulary ReplyVocabulary::of(const Tokenizer& tokenizer, const std::string& where) {
  ReplyVocabulary vocabulary;
  std::string missing;
  for (size_t i = 0; i < kReplyTagText.size(); ++i) {
    const std::optional<int32_t> id = tokenizer.find(kReplyTagText[i]);
    if (!id) missing.append(missing.empty() ? "" : " ").append(kReplyTagText[i]);
    vocabulary.tags[i] = id.value_or(-1);
  }
  if (!missing.empty())
    fail(ErrorKind::kUnsupported, where,
         "the tokenizer has no added token {}; replies are read by these tags; use the tokenizer.json that belongs to "
         "the checkpoint",
         missing);
  vocabulary.piece = [tokenizer](int32_t id) { return tokenizer.piece(id); };
  vocabulary.is_special = [tokenizer](int32_t id) { return tokenizer.is_special(id); };
  return vocabulary;
}

ReplyStart reply_start(std::span<const int32_t> prompt, const ReplyVocabulary& vocabulary) {
  for (size_t i = prompt.size(); i-- > 0;) {
    const std::optional<ReplyTag> tag = vocabulary.tag(prompt[i]);
    if (tag == ReplyTag::kThinkBegin) return ReplyStart::kReasoning;
    if (tag == ReplyTag::kThinkEnd) return i + 1 == prompt.size() ? ReplyStart::kAnswer : ReplyStart::kMidAnswer;
    if (!tag && vocabulary.is_special && vocabulary.is_special(prompt[i])) break;
  }
  return ReplyStart::kUnspecified;
}

}  // namespace verbatim::text

// The promise: whatever runs beside it, a reply is that of its request alone. In full (500 mixes) behind the label
// `long`; VERBATIM_MIXES of the build says how many run here.
#include "tests/engine/mix_check.h"

namespace verbatim::engine {
namespace {

TEST(OneResult, EveryReplyOfEveryMixIsThatOfItsRequestAlone) { check_mixes(Models(), VERBATIM_MIXES); }

}  // namespace
}  // namespace verbatim::engine

// The proxy under the name that the tests of models use.
#pragma once

#include "ops/ops_proxy.h"

namespace verbatim::model {

using ops::OpsProxy;

}  // namespace verbatim::model

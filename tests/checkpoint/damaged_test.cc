// Damaged checkpoints: each is refused with a message that names the file or tensor, what was found and what was
// expected.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/stored_matrix.h"
#include "tests/checkpoint/test_files.h"

namespace verbatim::checkpoint {
namespace {

namespace fs = std::filesystem;

// ---- pieces -------------------------------------------------------------------------------------------------------
const std::string kTensor = R"("dtype":"U8","shape":[4],"data_offsets":[0,4])";

// {"t": {...}} as a file, with 4 bytes of data.
std::string one(const std::string& members, const std::string& data = "abcd") {
  return file_of("{\"t\":{" + members + "}}", data);
}

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

// An NVFP4 matrix "m" [2, 32] as ModelOpt stores it; companions can be replaced or left out.
std::vector<StoredTensor> nvfp4(const std::string& scales = std::string(4, '\x38'), float scale_2 = 0.5f,
                                float input_scale = 0.25f) {
  return {{"m.input_scale", "F32", {}, f32(input_scale)},
          {"m.weight", "U8", {2, 16}, std::string(32, '\x21')},
          {"m.weight_scale", "F8_E4M3", {2, 2}, scales},
          {"m.weight_scale_2", "F32", {}, f32(scale_2)}};
}
std::vector<StoredTensor> compressed(float global) {
  return {{"m.weight_global_scale", "F32", {1}, f32(global)},
          {"m.weight_packed", "U8", {2, 16}, std::string(32, '\x21')},
          {"m.weight_scale", "F8_E4M3", {2, 2}, std::string(4, '\x38')}};
}
// An FP8 matrix "m" [2, 32] with its one block.
std::vector<StoredTensor> fp8(float scale) {
  return {{"m.weight", "F8_E4M3", {2, 32}, std::string(64, '\x38')}, {"m.weight_scale_inv", "F32", {1, 1}, f32(scale)}};
}
std::vector<StoredTensor> without(std::vector<StoredTensor> tensors, const std::string& name) {
  std::erase_if(tensors, [&](const StoredTensor& tensor) { return tensor.name == name; });
  return tensors;
}
std::vector<StoredTensor> with(std::vector<StoredTensor> tensors, const StoredTensor& replacement) {
  tensors = without(std::move(tensors), replacement.name);
  tensors.push_back(replacement);
  return tensors;
}

// ---- what is done with a directory --------------------------------------------------------------------------------
void open_it(const fs::path& directory) { Checkpoint::open(directory); }

// Everything that a loader asks of the matrix "m" [2, 32].
void load_matrix(const fs::path& directory) {
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const StoredMatrix matrix = resolve_matrix(checkpoint, "m", 2, 32);
  check_block_scales(checkpoint, matrix);
  if (matrix.matrix_scale != nullptr) matrix_scale(checkpoint, matrix);
  if (matrix.input_scale != nullptr) input_scale(checkpoint, matrix);
  std::vector<float> out(64);
  dequantise(checkpoint, matrix, out);
}

struct Case {
  const char* name;
  std::function<void(const fs::path&)> make;  // adds to a directory that holds config.json
  std::function<void(const fs::path&)> act;
  ErrorKind kind;
  std::vector<std::string> words;  // all of them in the message
};

// A directory with this model.safetensors.
std::function<void(const fs::path&)> model(std::string bytes) {
  return [bytes = std::move(bytes)](const fs::path& directory) { write_bytes(directory / "model.safetensors", bytes); };
}
std::function<void(const fs::path&)> model(const std::vector<StoredTensor>& tensors) {
  return model(safetensors(tensors));
}
// A good model.safetensors and this config.json (and hf_quant_config.json).
std::function<void(const fs::path&)> configured(std::string config, std::string hf_quant_config = "") {
  return [=](const fs::path& directory) {
    write_bytes(directory / "model.safetensors", one(kTensor));
    write_bytes(directory / "config.json", config);
    if (!hf_quant_config.empty()) write_bytes(directory / "hf_quant_config.json", hf_quant_config);
  };
}
// Two shards, "a" in a.safetensors and "b" in b.safetensors, under this index.
std::function<void(const fs::path&)> indexed(std::string index) {
  return [=](const fs::path& directory) {
    write_bytes(directory / "a.safetensors", safetensors({{"a", "U8", {4}, "abcd"}}));
    write_bytes(directory / "b.safetensors", safetensors({{"b", "U8", {4}, "abcd"}}));
    write_bytes(directory / "model.safetensors.index.json", index);
  };
}
std::string quantised(const std::string& members) { return "{\"quantization_config\":{" + members + "}}"; }

const std::vector<Case>& cases() {
  constexpr ErrorKind kFormat = ErrorKind::kFormat, kIo = ErrorKind::kIo, kUnsupported = ErrorKind::kUnsupported;
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const std::string modelopt = R"("quant_method":"modelopt",)";
  static const std::vector<Case> all = {
      // ---- the container
      {"EmptyFile", model(std::string()), open_it, kFormat, {"model.safetensors", "0 bytes", "at least 8"}},
      {"SevenBytes", model(std::string(7, '\0')), open_it, kFormat, {"model.safetensors", "7 bytes", "at least 8"}},
      {"NoHeader", model(std::string(8, '\0')), open_it, kFormat, {"model.safetensors", "'{'", "JSON object"}},
      {"HeaderLongerThanFile",
       model(one(kTensor).substr(0, 30)),
       open_it,
       kFormat,
       {"model.safetensors", "longer than the file", "at most 22"}},
      {"HugeHeaderLength",
       model(std::string(7, '\xff') + "\x7f" + one(kTensor)),
       open_it,
       kFormat,
       {"model.safetensors", "9223372036854775807 bytes", "at most 100000000"}},
      {"HeaderPastTheLimit",
       model(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + one(kTensor)),
       open_it,
       kFormat,
       {"model.safetensors", "100000001 bytes", "at most 100000000"}},
      {"TruncatedInTheData",
       model(one(kTensor, "abc")),
       open_it,
       kFormat,
       {"model.safetensors", "'t'", "[0, 4]", "3 bytes of data", "expected a file of at least"}},
      {"TruncatedBeforeTheData", model(one(kTensor, "")), open_it, kFormat, {"'t'", "0 bytes of data", "at least"}},
      {"BytesAfterTheLast",
       model(one(kTensor, "abcdef")),
       open_it,
       kFormat,
       {"model.safetensors", "2 bytes after the last tensor 't'", "expected the file to end at byte"}},
      {"HeaderIsNotJson",
       model(file_of("{\"t\": nonsense}")),
       open_it,
       kFormat,
       {"model.safetensors", "not valid JSON", "expected"}},
      {"HeaderIsCutShort",
       model(file_of("{\"t\":{\"dtype\":\"U8\"")),
       open_it,
       kFormat,
       {"not valid JSON", "expected"}},
      {"HeaderIsAnArray", model(file_of("[1]")), open_it, kFormat, {"model.safetensors", "'{'", "expected"}},
      {"BadUtf8InAName",
       model(file_of("{\"t\xff\":{" + kTensor + "}}", "abcd")),
       open_it,
       kFormat,
       {"model.safetensors", "UTF-8", "expected"}},
      {"DeepNesting",
       model(file_of("{\"t\":" + nested(200000) + "}")),
       open_it,
       kFormat,
       {"tensor 't'", "expected an object", "found an array"}},
      {"DeepNestingInMetadata",
       model(file_of("{\"__metadata__\":{\"a\":" + nested(200000) + "}}")),
       open_it,
       kFormat,
       {"__metadata__", "expected an object of strings", "found an array"}},
      {"MetadataIsANumber",
       model(file_of("{\"__metadata__\":{\"a\":1}}")),
       open_it,
       kFormat,
       {"__metadata__", "strings", "found the number 1"}},
      {"TensorIsNull", model(file_of("{\"t\":null}")), open_it, kFormat, {"'t'", "expected an object", "found null"}},
      {"UnknownDtype",
       model(one(R"("dtype":"F4","shape":[8],"data_offsets":[0,4])")),
       open_it,
       kFormat,
       {"'t'", "dtype", "F8_E4M3", "found the string 'F4'"}},
      {"UnknownMember",
       model(one(kTensor + R"(,"strides":[1])")),
       open_it,
       kFormat,
       {"'t'", "dtype, shape and data_offsets", "found the key 'strides'"}},
      {"DtypeTwice",
       model(one(R"("dtype":"U8",)" + kTensor)),
       open_it,
       kFormat,
       {"'t'", "each once", "a second 'dtype'"}},
      {"NoOffsets",
       model(one(R"("dtype":"U8","shape":[4])")),
       open_it,
       kFormat,
       {"'t'", "expected", "no data_offsets"}},
      {"NegativeDimension",
       model(one(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])")),
       open_it,
       kFormat,
       {"'t'", "shape", "from 0 to", "found the number -4"}},
      {"FractionalDimension",
       model(one(R"("dtype":"U8","shape":[4.5],"data_offsets":[0,4])")),
       open_it,
       kFormat,
       {"'t'", "shape", "integers", "found the number '4.5'"}},
      {"NineDimensions",
       model(one(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,4])")),
       open_it,
       kFormat,
       {"'t'", "at most 8", "found more than 8 dimensions"}},
      {"ShapeOverflows",
       model(one(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4])")),
       open_it,
       kFormat,
       {"'t'", "[4611686018427387904, 4]", "overflows", "expected"}},
      {"BillionTensors",
       model(one(R"("dtype":"U8","shape":[1000000000000000000],"data_offsets":[0,1000000000000000000])")),
       open_it,
       kFormat,
       {"'t'", "1000000000000000000", "4 bytes of data", "expected a file of"}},
      {"OffsetsBeyond64Bits",
       model(one(R"("dtype":"U8","shape":[4],"data_offsets":[0,99999999999999999999999])")),
       open_it,
       kFormat,
       {"'t'", "data_offsets", "integers >= 0", "found the number '99999999999999999999999'"}},
      {"OffsetsNearTheLimit",
       model(one(R"("dtype":"U8","shape":[4],"data_offsets":[18446744073709551611,18446744073709551615])")),
       open_it,
       kFormat,
       {"'t'", "18446744073709551615", "4 bytes of data", "expected"}},
      {"OffsetsBackwards",
       model(one(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])")),
       open_it,
       kFormat,
       {"'t'", "[4, 0]", "out of order", "expected begin <= end"}},
      {"OneOffset",
       model(one(R"("dtype":"U8","shape":[4],"data_offsets":[4])")),
       open_it,
       kFormat,
       {"'t'", "two integers", "found 1 offsets"}},
      {"SizeIsNotTheShape",
       model(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])")),
       open_it,
       kFormat,
       {"'t'", "hold 4 bytes", "expected 8 for F32 [2]"}},
      {"Overlap",
       model(file_of("{\"t\":{" + kTensor + R"(},"u":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}})", "abcde")),
       open_it,
       kFormat,
       {"'u'", "[2, 5]", "overlap 't'", "expected begin 4"}},
      {"Hole",
       model(file_of("{\"t\":{" + kTensor + R"(},"u":{"dtype":"U8","shape":[1],"data_offsets":[6,7]}})", "abcdefg")),
       open_it,
       kFormat,
       {"'u'", "a hole of 2 bytes after 't'", "expected begin 4"}},
      {"HoleAtTheStart",
       model(one(R"("dtype":"U8","shape":[2],"data_offsets":[2,4])")),
       open_it,
       kFormat,
       {"'t'", "a hole of 2 bytes after the header", "expected begin 0"}},
      {"NameTwiceInOneFile",
       model(file_of("{\"t\":{" + kTensor + R"(},"t":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})", "abcde")),
       open_it,
       kFormat,
       {"model.safetensors", "'t'", "declared twice", "expected each name once"}},

      // ---- the directory and its index
      {"NoDirectory",
       [](const fs::path&) {},
       [](const fs::path& directory) { open_it(directory / "absent"); },
       kIo,
       {"absent", "not a directory", "expected"}},
      {"NoCheckpoint",
       [](const fs::path&) {},
       open_it,
       kIo,
       {"no checkpoint", "model.safetensors", "expected one of them"}},
      {"NoConfig",
       [](const fs::path& directory) {
         write_bytes(directory / "model.safetensors", one(kTensor));
         fs::remove(directory / "config.json");
       },
       open_it,
       kIo,
       {"config.json", "not there", "expected"}},
      {"ShardAbsent",
       indexed(R"({"weight_map":{"a":"a.safetensors","b":"c.safetensors"}})"),
       open_it,
       kIo,
       {"index.json", "'c.safetensors'", "'b'", "not there", "expected a file"}},
      {"ShardIsADirectory",
       [](const fs::path& directory) {
         indexed(R"({"weight_map":{"a":"a.safetensors","b":"b"}})")(directory);
         fs::create_directory(directory / "b");
       },
       open_it,
       kIo,
       {"'b'", "expected a file"}},
      {"TensorNotInItsShard",
       indexed(R"({"weight_map":{"a":"a.safetensors","b":"a.safetensors"}})"),
       open_it,
       kFormat,
       {"1 of 2 tensors", "'b'", "expected in the shard 'a.safetensors'", "found nowhere"}},
      {"TensorInAnotherShard",
       indexed(R"({"weight_map":{"a":"b.safetensors","b":"b.safetensors", "c":"a.safetensors"}})"),
       open_it,
       kFormat,
       {"2 of 3 tensors", "'a'", "expected in the shard 'b.safetensors'", "found in 'a.safetensors'"}},
      {"ShardAboveTheDirectory",
       indexed(R"({"weight_map":{"a":"../a.safetensors"}})"),
       open_it,
       kFormat,
       {"'a'", "'../a.safetensors'", "leaves the checkpoint's directory", "expected a name inside it"}},
      {"ShardAboveByADetour",
       indexed(R"({"weight_map":{"a":"x/../../a.safetensors"}})"),
       open_it,
       kFormat,
       {"'a'", "leaves", "expected"}},
      {"ShardAbsolute",
       indexed(R"({"weight_map":{"a":"/etc/passwd"}})"),
       open_it,
       kFormat,
       {"'/etc/passwd'", "leaves", "expected"}},
      {"ShardWithoutName", indexed(R"({"weight_map":{"a":""}})"), open_it, kFormat, {"'a'", "''", "expected"}},
      {"ShardNameWithNul",
       indexed(R"({"weight_map":{"a":"a.safetensors\u0000x"}})"),
       open_it,
       kFormat,
       {"'a'", "'a.safetensors\\x00x'", "expected"}},
      {"IndexIsNotJson", indexed("weight_map"), open_it, kFormat, {"index.json", "not valid JSON", "expected"}},
      {"IndexIsEmpty", indexed(""), open_it, kFormat, {"index.json", "not valid JSON", "expected"}},
      {"IndexWithoutMap",
       indexed(R"({"metadata":{"total_size":8}})"),
       open_it,
       kFormat,
       {"index.json", "no weight_map", "expected"}},
      {"IndexMapsToANumber",
       indexed(R"({"weight_map":{"a":7}})"),
       open_it,
       kFormat,
       {"'a'", "expected a file name", "found the number 7"}},
      {"IndexNamesTwice",
       indexed(R"({"weight_map":{"a":"a.safetensors","a":"b.safetensors"}})"),
       open_it,
       kFormat,
       {"'a'", "named twice", "'a.safetensors'", "'b.safetensors'", "expected once"}},
      {"IndexNestsDeeply",
       indexed("{\"other\":" + nested(100000) + "}"),
       open_it,
       kFormat,
       {"index.json", "nesting deeper than 64", "expected"}},
      {"TensorInTwoShards",
       [](const fs::path& directory) {
         write_bytes(directory / "a.safetensors", one(kTensor));
         write_bytes(directory / "b.safetensors", one(kTensor));
       },
       open_it,
       kFormat,
       {"'t'", "stored twice", "a.safetensors", "b.safetensors", "expected it once"}},
      {"TensorInTwoIndexedShards",
       [](const fs::path& directory) {
         write_bytes(directory / "a.safetensors", safetensors({{"a", "U8", {1}, "x"}, {"b", "U8", {1}, "y"}}));
         write_bytes(directory / "b.safetensors", safetensors({{"b", "U8", {1}, "z"}}));
         write_bytes(directory / "model.safetensors.index.json",
                     R"({"weight_map":{"a":"a.safetensors","b":"b.safetensors"}})");
       },
       open_it,
       kFormat,
       {"'b'", "stored twice", "a.safetensors", "b.safetensors", "expected it once"}},

      // ---- names
      {"AliasClash",
       model({{"lm_head.weight", "U8", {1}, "x"}, {"language_model.lm_head.weight", "U8", {1}, "y"}}),
       open_it,
       kFormat,
       {"'lm_head.weight'", "'language_model.lm_head.weight'", "stored twice", "expected it once"}},
      {"FusedClash",
       model({{"model.language_model.layers.0.self_attn.conv1d.weight", "U8", {3, 1, 4}, std::string(12, 'x')},
              {"model.language_model.layers.0.self_attn.k_conv1d.weight", "U8", {1, 1, 4}, "abcd"}}),
       open_it,
       kFormat,
       {"layers.0.self_attn.k_conv1d.weight'", "self_attn.conv1d.weight'", "stored twice", "expected it once"}},
      {"FusedConvolutionShape",
       model({{"model.language_model.layers.0.self_attn.conv1d.weight", "U8", {4, 1, 1}, "abcd"}}),
       open_it,
       kFormat,
       {"conv1d.weight'", "[4, 1, 1]", "expected [3 * width, 1, taps]"}},
      {"FusedExpertsShape",
       model({{"model.language_model.layers.0.mlp.experts.gate_up_proj", "U8", {1, 1, 4}, "abcd"}}),
       open_it,
       kFormat,
       {"gate_up_proj'", "[1, 1, 4]", "expected [experts, 2 * width, hidden]"}},
      {"FusedExpertsWithoutBytes",
       model({{"model.language_model.layers.0.mlp.experts.down_proj", "U8", {60000, 0, 4}, ""}}),
       open_it,
       kFormat,
       {"down_proj'", "[60000, 0, 4]", "expected no dimension of 0"}},
      {"FusedExpertsTooMany",
       model({{"model.language_model.layers.0.mlp.experts.down_proj", "U8", {70000, 1, 1}, std::string(70000, 'x')}}),
       open_it,
       kFormat,
       {"down_proj'", "[70000, 1, 1]", "expected [experts, hidden, width]"}},

      // ---- metadata
      {"ConfigIsNotJson", configured("{\"quant"), open_it, kFormat, {"config.json", "not valid JSON", "expected"}},
      {"ConfigIsAList", configured("[]"), open_it, kFormat, {"config.json", "array", "expected an object"}},
      {"ConfigNestsDeeply",
       configured(quantised("\"quant_method\":" + nested(300000))),
       open_it,
       kFormat,
       {"config.json", "nested past 64 levels", "expected"}},
      {"UnknownMethod",
       configured(quantised(R"("quant_method":"awq")")),
       open_it,
       kUnsupported,
       {"config.json", "quantization_config.quant_method", "awq", "expected modelopt, fp8 or compressed-tensors"}},
      {"NoMethod",
       configured(quantised(R"("bits":4)")),
       open_it,
       kUnsupported,
       {"quantization_config.quant_method: absent", "expected modelopt"}},
      {"UnknownAlgorithm",
       configured(quantised(modelopt + R"("quant_algo":"W4A8_AWQ")")),
       open_it,
       kUnsupported,
       {"quantization_config.quant_algo", "W4A8_AWQ", "expected NVFP4"}},
      {"WrongGroupSize",
       configured(quantised(modelopt + R"("quant_algo":"NVFP4","group_size":32)")),
       open_it,
       kUnsupported,
       {"quantization_config.group_size", "32", "expected 16"}},
      {"WrongBits",
       configured(quantised(
           modelopt +
           R"("quant_algo":"NVFP4","config_groups":{"g":{"weights":{"num_bits":8,"type":"float","group_size":16}}})")),
       open_it,
       kUnsupported,
       {"config_groups.g.weights.num_bits", "8", "expected 4"}},
      {"WrongLayerAlgorithm",
       configured(
           quantised(modelopt + R"("quant_algo":"MIXED_PRECISION","quantized_layers":{"x":{"quant_algo":"INT8"}})")),
       open_it,
       kUnsupported,
       {"quantized_layers.x.quant_algo", "INT8", "expected NVFP4 or W4A16_NVFP4"}},
      {"WrongBlockSize",
       configured(quantised(R"("quant_method":"fp8","weight_block_size":[64,128])")),
       open_it,
       kUnsupported,
       {"weight_block_size", "[64,128]", "expected [128,128]"}},
      {"NoBlockSize",
       configured(quantised(R"("quant_method":"fp8")")),
       open_it,
       kUnsupported,
       {"weight_block_size: absent", "expected [128,128]"}},
      {"WrongFp8Format",
       configured(quantised(R"("quant_method":"fp8","fmt":"e5m2","weight_block_size":[128,128])")),
       open_it,
       kUnsupported,
       {"quantization_config.fmt", "e5m2", "expected \"e4m3\""}},
      {"StaticFp8Activations",
       configured(quantised(R"("quant_method":"fp8","activation_scheme":"static","weight_block_size":[128,128])")),
       open_it,
       kUnsupported,
       {"activation_scheme", "static", "expected \"dynamic\""}},
      {"UnknownCompression",
       configured(quantised(R"("quant_method":"compressed-tensors","format":"marlin-24","config_groups":{})")),
       open_it,
       kUnsupported,
       {"quantization_config.format", "marlin-24", "expected nvfp4-pack-quantized"}},
      {"CompressedGroupSize",
       configured(quantised(
           R"("quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","config_groups":{"g":{"weights":{"num_bits":4,"type":"float","group_size":128}}})")),
       open_it,
       kUnsupported,
       {"config_groups.g.weights.group_size", "128", "expected 16"}},
      {"CompressedBlockStructure",
       configured(quantised(
           R"("quant_method":"compressed-tensors","format":"mixed-precision","config_groups":{"g":{"weights":{"num_bits":8,"type":"float","strategy":"block","block_structure":[64,64]}}})")),
       open_it,
       kUnsupported,
       {"config_groups.g.weights.block_structure", "[64,64]", "expected [128,128]"}},
      {"CompressedChannelScales",
       configured(quantised(
           R"("quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"g":{"weights":{"num_bits":8,"type":"float","strategy":"channel"}}})")),
       open_it,
       kUnsupported,
       {"config_groups.g.weights.strategy", "channel", "expected"}},
      {"IgnoreIsNotAList",
       configured(quantised(modelopt + R"("quant_algo":"NVFP4","ignore":"lm_head")")),
       open_it,
       kFormat,
       {"quantization_config.ignore", "lm_head", "expected a list of strings"}},
      {"FilesDisagree",
       configured(quantised(modelopt + R"("quant_algo":"NVFP4")"),
                  R"({"quantization":{"quant_algo":"MIXED_PRECISION"}})"),
       open_it,
       kFormat,
       {"config.json", "says NVFP4", "hf_quant_config.json", "says MIXED_PRECISION", "expected the same"}},
      {"UnknownAlgorithmBeside",
       configured("{}", R"({"quantization":{"quant_algo":"FP8"}})"),
       open_it,
       kUnsupported,
       {"hf_quant_config", "quant_algo", "FP8", "expected NVFP4"}},

      // ---- matrices
      {"MatrixAbsent",
       model({{"n.weight", "U8", {1}, "x"}}),
       load_matrix,
       kFormat,
       {"'m.weight'", "missing", "expected a matrix [2, 32]"}},
      {"WeightOfIntegers",
       model({{"m.weight", "I8", {2, 32}, std::string(64, '\1')}}),
       load_matrix,
       kFormat,
       {"'m.weight'", "dtype I8", "expected BF16, F32, U8 (NVFP4) or F8_E4M3"}},
      {"WeightOfHalves",
       model({{"m.weight", "F16", {2, 32}, std::string(128, '\1')}}),
       load_matrix,
       kFormat,
       {"'m.weight'", "F16", "expected BF16"}},
      {"PlainShape",
       model({{"m.weight", "BF16", {32, 2}, std::string(128, '\1')}}),
       load_matrix,
       kFormat,
       {"'m.weight'", "BF16 [32, 2]", "expected BF16 [2, 32]"}},
      {"PackedShape",
       model(with(nvfp4(), {"m.weight", "U8", {2, 32}, std::string(64, '\1')})),
       load_matrix,
       kFormat,
       {"'m.weight'", "U8 [2, 32]", "expected U8 [2, 16]"}},
      {"NoBlockScale",
       model(without(nvfp4(), "m.weight_scale")),
       load_matrix,
       kFormat,
       {"'m.weight_scale'", "missing", "expected F8_E4M3 [2, 2]"}},
      {"NoMatrixScale",
       model(without(nvfp4(), "m.weight_scale_2")),
       load_matrix,
       kFormat,
       {"'m.weight_scale_2'", "missing", "expected F32 []"}},
      {"BlockScaleDtype",
       model(with(nvfp4(), {"m.weight_scale", "U8", {2, 2}, "8888"})),
       load_matrix,
       kFormat,
       {"'m.weight_scale'", "U8 [2, 2]", "expected F8_E4M3 [2, 2]"}},
      {"BlockScaleShape",
       model(with(nvfp4(), {"m.weight_scale", "F8_E4M3", {4}, "8888"})),
       load_matrix,
       kFormat,
       {"'m.weight_scale'", "F8_E4M3 [4]", "expected F8_E4M3 [2, 2]"}},
      {"MatrixScaleShape",
       model(with(nvfp4(), {"m.weight_scale_2", "F32", {2}, f32(1) + f32(1)})),
       load_matrix,
       kFormat,
       {"'m.weight_scale_2'", "F32 [2]", "expected F32 []"}},
      {"InputScaleDtype",
       model(with(nvfp4(), {"m.input_scale", "BF16", {}, "ab"})),
       load_matrix,
       kFormat,
       {"'m.input_scale'", "BF16 []", "expected F32 []"}},
      {"MatrixScaleNan",
       model(nvfp4(std::string(4, '\x38'), nan)),
       load_matrix,
       kFormat,
       {"'m.weight_scale_2'", "nan", "expected a finite scale above 0"}},
      {"MatrixScaleInfinite",
       model(nvfp4(std::string(4, '\x38'), infinity)),
       load_matrix,
       kFormat,
       {"'m.weight_scale_2'", "inf", "expected a finite scale"}},
      {"MatrixScaleZero",
       model(nvfp4(std::string(4, '\x38'), 0)),
       load_matrix,
       kFormat,
       {"'m.weight_scale_2'", ": 0;", "expected a finite scale above 0"}},
      {"MatrixScaleNegative",
       model(nvfp4(std::string(4, '\x38'), -1)),
       load_matrix,
       kFormat,
       {"'m.weight_scale_2'", "-1", "expected a finite scale above 0"}},
      {"InputScaleZero",
       model(nvfp4(std::string(4, '\x38'), 1, 0)),
       load_matrix,
       kFormat,
       {"'m.input_scale'", ": 0;", "expected a finite scale above 0"}},
      {"BlockScaleNan",
       model(nvfp4("88\x7f"
                   "8")),
       load_matrix,
       kFormat,
       {"'m.weight_scale'", "row 1, block 0", "0x7f, NaN", "expected a number >= 0"}},
      {"BlockScaleNegativeNan",
       model(nvfp4("888\xff")),
       load_matrix,
       kFormat,
       {"'m.weight_scale'", "row 1, block 1", "0xff, NaN", "expected"}},
      {"BlockScaleNegative",
       model(nvfp4("8\xb8"
                   "88")),
       load_matrix,
       kFormat,
       {"'m.weight_scale'", "row 0, block 1", "0xb8, negative", "expected"}},
      {"Nvfp4WithFp8Scale",
       model(with(nvfp4(), {"m.weight_scale_inv", "F32", {1, 1}, f32(1)})),
       load_matrix,
       kFormat,
       {"'m.weight_scale_inv'", "F32 [1, 1]", "expected no such tensor"}},
      {"PlainWithScale",
       model({{"m.weight", "BF16", {2, 32}, std::string(128, '\1')}, {"m.weight_scale", "F32", {}, f32(1)}}),
       load_matrix,
       kFormat,
       {"'m.weight_scale'", "beside a BF16 weight", "expected no such tensor"}},
      {"TwoWeights",
       model(with(nvfp4(), {"m.weight_packed", "U8", {2, 16}, std::string(32, '\1')})),
       load_matrix,
       kFormat,
       {"'m'", "both weight and weight_packed", "expected one"}},
      {"GlobalScaleAbsent",
       model(without(compressed(1), "m.weight_global_scale")),
       load_matrix,
       kFormat,
       {"'m.weight_global_scale'", "missing", "expected F32 []"}},
      {"GlobalScaleZero",
       model(compressed(0)),
       load_matrix,
       kFormat,
       {"'m.weight_global_scale'", "0", "inverse is inf", "expected"}},
      {"GlobalScaleWithoutInverse",
       model(compressed(1e-39f)),
       load_matrix,
       kFormat,
       {"'m.weight_global_scale'", "inverse is inf", "expected"}},
      {"GlobalScaleInfinite",
       model(compressed(infinity)),
       load_matrix,
       kFormat,
       {"'m.weight_global_scale'", "inf", "expected"}},
      {"Fp8ScaleAbsent",
       model(without(fp8(1), "m.weight_scale_inv")),
       load_matrix,
       kFormat,
       {"'m.weight_scale_inv'", "missing", "nor is there a weight_scale", "expected F32 [1, 1]"}},
      {"Fp8ScaleOfTheMatrix",
       model({{"m.weight", "F8_E4M3", {2, 32}, std::string(64, '8')}, {"m.weight_scale", "F32", {}, f32(1)}}),
       load_matrix,
       kFormat,
       {"'m.weight_scale'", "F32 []", "expected F32 [1, 1]"}},
      {"Fp8TwoScales",
       model(with(fp8(1), {"m.weight_scale", "F32", {1, 1}, f32(1)})),
       load_matrix,
       kFormat,
       {"'m.weight_scale'", "expected no such tensor"}},
      {"Fp8ScaleNan",
       model(fp8(nan)),
       load_matrix,
       kFormat,
       {"'m.weight_scale_inv'", "row 0, block 0", "nan", "expected a finite scale"}},
      {"Fp8ScaleInfinite",
       model(fp8(infinity)),
       load_matrix,
       kFormat,
       {"'m.weight_scale_inv'", "row 0, block 0", "inf", "expected a finite scale"}},
      {"Fp8ScaleNegative",
       model(fp8(-1)),
       load_matrix,
       kFormat,
       {"'m.weight_scale_inv'", "row 0, block 0", "-1", "expected a finite scale >= 0"}},
      {"OddColumns",
       model(nvfp4()),
       [](const fs::path& directory) { resolve_matrix(Checkpoint::open(directory), "m", 2, 24); },
       kFormat,
       {"'m'", "24 columns", "expected a multiple of 16"}},

      // ---- inventories
      {"InventoryOverflow",
       [](const fs::path& directory) {
         write_bytes(directory / "headers.json", R"({"t":["F32",[4611686018427387904,2]]})");
       },
       [](const fs::path& directory) {
         Checkpoint::from_inventory(directory / "headers.json", directory / "config.json");
       },
       kFormat,
       {"headers.json", "'t'", "[4611686018427387904, 2]", "overflows"}},
      {"InventoryForm",
       [](const fs::path& directory) { write_bytes(directory / "headers.json", R"({"t":{"dtype":"F32"}})"); },
       [](const fs::path& directory) {
         Checkpoint::from_inventory(directory / "headers.json", directory / "config.json");
       },
       kFormat,
       {"headers.json", "'t'", "expected [dtype, shape]", "found an object"}},
      {"InventoryNamesTwice",
       [](const fs::path& directory) { write_bytes(directory / "headers.json", R"({"t":["U8",[1]],"t":["U8",[1]]})"); },
       [](const fs::path& directory) {
         Checkpoint::from_inventory(directory / "headers.json", directory / "config.json");
       },
       kFormat,
       {"'t'", "stored twice", "expected it once"}},
  };
  return all;
}

class Damaged : public testing::TestWithParam<Case> {};

TEST_P(Damaged, IsRefusedByName) {
  const TemporaryDirectory directory;
  write_bytes(directory.path() / "config.json", "{}");
  GetParam().make(directory.path());
  const Refusal refusal = refusal_of([&] { GetParam().act(directory.path()); });
  ASSERT_TRUE(refusal.thrown);
  EXPECT_EQ(static_cast<int>(refusal.kind), static_cast<int>(GetParam().kind)) << refusal.message;
  for (const std::string& word : GetParam().words)
    EXPECT_NE(refusal.message.find(word), std::string::npos) << "no " << word << " in: " << refusal.message;
  EXPECT_EQ(refusal.message.front(), '[') << refusal.message;
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Damaged, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& tested) { return std::string(tested.param.name); });

// The pieces themselves are sound, so that each case fails for its own reason.
TEST(DamagedPieces, AreSoundUndamaged) {
  for (const std::vector<StoredTensor>& tensors : {nvfp4(), compressed(2), fp8(1)}) {
    const TemporaryDirectory directory;
    write_bytes(directory.path() / "config.json", "{}");
    write_bytes(directory.path() / "model.safetensors", safetensors(tensors));
    const Refusal refusal = refusal_of([&] { load_matrix(directory.path()); });
    EXPECT_FALSE(refusal.thrown) << refusal.message;
  }
  const TemporaryDirectory directory;
  write_bytes(directory.path() / "config.json", "{}");
  indexed(R"({"weight_map":{"a":"a.safetensors","b":"b.safetensors"}})")(directory.path());
  EXPECT_EQ(Checkpoint::open(directory.path()).tensors().size(), 2u);
}

// Every proper prefix of a good file is refused, and no flipped byte makes the reader step outside the buffer: each
// variant has a heap block of exactly its size, which the address sanitizer watches.
TEST(DamagedPieces, AreReadInsideTheirBytes) {
  const std::string good = safetensors(nvfp4(), 4);
  auto parse = [](const std::string& bytes) {
    const std::vector<std::byte> exact(reinterpret_cast<const std::byte*>(bytes.data()),
                                       reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size());
    return refusal_of([&] {
      for (const HeaderTensor& tensor : parse_header(exact, "variant").tensors) ASSERT_LE(tensor.end, exact.size());
    });
  };
  EXPECT_FALSE(parse(good).thrown);
  for (size_t size = 0; size < good.size(); ++size) EXPECT_TRUE(parse(good.substr(0, size)).thrown) << size;
  for (size_t at = 0; at < good.size(); ++at)
    for (const int bit : {0, 3, 7}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      parse(bad);
    }
}

}  // namespace
}  // namespace verbatim::checkpoint

#pragma once
// The tokens and the syntax tree of a chat template.

#include "data/chat/jinja_value.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    kLiteral,    // value
    kName,       // name
    kList,       // parts
    kTuple,      // parts
    kDict,       // parts: key, value, key, value …
    kAttribute,  // parts[0].name
    kItem,       // parts[0][parts[1]]
    kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], null where not given
    kCall,       // parts[0](parts[1…], named)
    kFilter,     // parts[0] | name(parts[1…], named)
    kTest,       // parts[0] is name(parts[1…])
    kNot,        // parts[0]
    kUnary,      // name: "-" or "+"
    kBinary,     // name: + - * / // % **
    kConcat,     // parts[0] ~ parts[1] ~ …
    kAnd,
    kOr,
    kCompare,    // parts[0] operators[0] parts[1] operators[1] …
    kCondition,  // parts[0] if parts[1] else parts[2], which may be null
  };
  Kind kind = Kind::kLiteral;
  size_t offset = 0;
  int depth = 0;  // of chains of operators and members
  std::string name;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
};

/// A place that `set` and `for` assign to: a name, a member of a namespace, or several names.
struct Target {
  std::string name, member;
  std::vector<Target> parts;
};

struct Statement;
using Body = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPtr fallback;  // null: none
};

struct Statement {
  enum class Kind { kText, kPrint, kIf, kFor, kSet, kSetBlock, kMacro, kFilterBlock, kGeneration, kBreak, kContinue };
  Kind kind = Kind::kText;
  size_t offset = 0;
  std::string text;  // of kText; the name of a macro
  /// kPrint and kSet: the value. kIf: the conditions. kFor: what is iterated over, and the filter or null. kSetBlock
  /// and kFilterBlock: a chain of filters over the literal in `expressions`, or null.
  std::vector<ExpressionPtr> expressions;
  Target target;
  std::vector<Parameter> parameters;
  std::vector<Body> bodies;  // kIf: one for each condition, and one more for else; kFor: the body, perhaps else
};

/// A template that cannot be rendered, and where. The caller adds the file.
struct TemplateError {
  size_t offset = 0;  // bytes of the source
  std::string what;
};

enum class TokenKind {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kText,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;   // of kText: its value
  size_t offset = 0;  // in the source
  int64_t integer = 0;
  double real = 0;
};

/// The source as Jinja reads it: line ends are \n, and one at the end is dropped.
std::string normalised_source(std::string_view source);

/// Tokens of a normalised source, a kEnd last, with the white space control of Jinja's trim_blocks and lstrip_blocks.
/// TemplateError.
std::vector<Token> tokenise(std::string_view source);

/// Parses the statements and expressions of Jinja 3.1 that chat templates use. `source`: normalised. TemplateError for
/// wrong syntax and for statements that are not supported. Whether filters and tests exist is known when they run.
Body parse_template(std::string_view source);

}  // namespace trireme::jinja

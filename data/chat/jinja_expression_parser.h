#pragma once
// Parses the expressions of a chat template. Private to data/chat.

#include "data/chat/jinja_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::jinja {

inline constexpr int kMaxNesting = 100;  // of brackets and blocks
inline constexpr int kMaxChain = 500;    // of a.b.c… and a + b + c…: the tree is walked recursively

class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view source) : tokens_(tokenise(source)) {}

 protected:
  using Kind = Expression::Kind;
  using Self = ExpressionParser;

  // ---- tokens

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_operator(std::string_view text) const { return now().kind == TokenKind::kOperator && now().text == text; }
  bool is_name(std::string_view text) const { return now().kind == TokenKind::kName && now().text == text; }
  bool accept(std::string_view text) { return is_operator(text) && (++at_, true); }
  bool accept_name(std::string_view text) { return is_name(text) && (++at_, true); }
  [[noreturn]] void fail(const std::string& what) const { throw TemplateError{now().offset, what}; }
  std::string found() const {
    switch (now().kind) {
      case TokenKind::kEnd: return "the end of the template";
      case TokenKind::kData: return "text outside of a block";
      case TokenKind::kVariableEnd:
      case TokenKind::kBlockEnd: return fmt::format("the end '{}'", now().text);
      default: return fmt::format("'{}'", now().text);
    }
  }
  void expect(std::string_view text) {
    if (!accept(text)) fail(fmt::format("expected '{}', found {}", text, found()));
  }
  std::string expect_name(const char* what) {
    if (now().kind != TokenKind::kName) fail(fmt::format("expected {}, found {}", what, found()));
    return take().text;
  }
  void end_block() {
    if (now().kind != TokenKind::kBlockEnd) fail(fmt::format("expected the end of the block, found {}", found()));
    ++at_;
  }

  struct Nesting {
    explicit Nesting(ExpressionParser& parser) : parser_(parser) {
      if (++parser.nesting_ > kMaxNesting) parser.fail(fmt::format("nested deeper than {}", kMaxNesting));
    }
    ~Nesting() { --parser_.nesting_; }
    ExpressionParser& parser_;
  };

  // ---- expressions

  static ExpressionPtr make(Kind kind, size_t offset, std::string name = {}) {
    auto result = std::make_unique<Expression>();
    result->kind = kind;
    result->offset = offset;
    result->name = std::move(name);
    return result;
  }
  static ExpressionPtr make(Kind kind, size_t offset, ExpressionPtr a, ExpressionPtr b, std::string name = {}) {
    auto result = make(kind, offset, std::move(name));
    result->depth = 1 + std::max(a->depth, b == nullptr ? 0 : b->depth);
    if (result->depth > kMaxChain)
      throw TemplateError{offset, fmt::format("an expression of more than {} steps", kMaxChain)};
    result->parts.push_back(std::move(a));
    if (b != nullptr) result->parts.push_back(std::move(b));
    return result;
  }

  /// One expression, or several with commas: a tuple.
  ExpressionPtr tuple(bool with_condition = true) {
    const size_t offset = now().offset;
    auto first = with_condition ? expression() : or_expression();
    if (!is_operator(",")) return first;
    auto result = make(Kind::kTuple, offset);
    result->parts.push_back(std::move(first));
    while (accept(",")) {
      if (now().kind == TokenKind::kVariableEnd || now().kind == TokenKind::kBlockEnd || is_operator(")")) break;
      result->parts.push_back(with_condition ? expression() : or_expression());
    }
    return result;
  }

  ExpressionPtr expression() {
    const Nesting nesting(*this);
    auto value = or_expression();
    while (is_name("if")) {
      const size_t offset = take().offset;
      auto condition = or_expression();
      ExpressionPtr otherwise = accept_name("else") ? expression() : nullptr;
      auto result = make(Kind::kCondition, offset, std::move(value), std::move(condition));
      result->parts.push_back(std::move(otherwise));
      value = std::move(result);
    }
    return value;
  }

  /// Operands between operators of one precedence, from left to right.
  ExpressionPtr chain(Kind kind, std::initializer_list<std::string_view> operators, ExpressionPtr (Self::*operand)()) {
    auto left = (this->*operand)();
    while ((now().kind == TokenKind::kOperator || now().kind == TokenKind::kName) &&
           std::find(operators.begin(), operators.end(), now().text) != operators.end()) {
      const Token op = take();
      left = make(kind, op.offset, std::move(left), (this->*operand)(), op.text);
    }
    return left;
  }

  ExpressionPtr or_expression() { return chain(Kind::kOr, {"or"}, &Self::and_expression); }
  ExpressionPtr and_expression() { return chain(Kind::kAnd, {"and"}, &Self::not_expression); }

  ExpressionPtr not_expression() {
    if (!is_name("not")) return comparison();
    const Nesting nesting(*this);
    const size_t offset = take().offset;
    return make(Kind::kNot, offset, not_expression(), nullptr);
  }

  ExpressionPtr comparison() {
    auto first = sum();
    ExpressionPtr result;
    for (;;) {
      std::string op;
      const size_t offset = now().offset;
      for (const char* each : {"==", "!=", "<", "<=", ">", ">="})
        if (is_operator(each)) op = each;
      if (is_name("in")) op = "in";
      if (is_name("not") && ahead().kind == TokenKind::kName && ahead().text == "in") {
        op = "not in";
        ++at_;
      }
      if (op.empty()) return result == nullptr ? std::move(first) : std::move(result);
      ++at_;
      if (result == nullptr) result = make(Kind::kCompare, offset, std::move(first), nullptr);
      result->operators.push_back(op);
      result->parts.push_back(sum());
    }
  }

  ExpressionPtr sum() { return chain(Kind::kBinary, {"+", "-"}, &Self::concatenation); }

  ExpressionPtr concatenation() {
    auto first = product();
    if (!is_operator("~")) return first;
    auto result = make(Kind::kConcat, now().offset, std::move(first), nullptr);
    while (accept("~")) result->parts.push_back(product());
    return result;
  }

  ExpressionPtr product() { return chain(Kind::kBinary, {"*", "/", "//", "%"}, &Self::power); }
  ExpressionPtr power() { return chain(Kind::kBinary, {"**"}, &Self::filtered); }
  ExpressionPtr filtered() { return unary(true); }

  ExpressionPtr unary(bool with_filters) {
    ExpressionPtr result;
    if (is_operator("-") || is_operator("+")) {
      const Nesting nesting(*this);
      const Token op = take();
      result = make(Kind::kUnary, op.offset, unary(false), nullptr, op.text);
    } else {
      result = primary();
    }
    result = postfix(std::move(result));
    return with_filters ? filters(std::move(result), false) : std::move(result);
  }

  ExpressionPtr primary() {
    const Token token = now();
    auto literal = [&](Value value) {
      auto result = make(Kind::kLiteral, token.offset);
      result->value = std::move(value);
      return result;
    };
    if (token.kind == TokenKind::kText) {
      std::string text;
      while (now().kind == TokenKind::kText) text += take().text;
      return literal(Value(std::move(text)));
    }
    if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) {
      ++at_;
      return literal(token.kind == TokenKind::kInteger ? Value(token.integer) : Value(token.real));
    }
    if (token.kind == TokenKind::kName) {
      ++at_;
      if (token.text == "true" || token.text == "True") return literal(Value(true));
      if (token.text == "false" || token.text == "False") return literal(Value(false));
      if (token.text == "none" || token.text == "None") return literal(Value());
      return make(Kind::kName, token.offset, token.text);
    }
    if (accept("(")) {
      if (accept(")")) return make(Kind::kTuple, token.offset);
      auto result = tuple();
      expect(")");
      return result;
    }
    if (accept("[")) {
      auto result = make(Kind::kList, token.offset);
      while (!accept("]")) {
        if (!result->parts.empty()) expect(",");
        if (accept("]")) break;
        result->parts.push_back(expression());
      }
      return result;
    }
    if (accept("{")) {
      auto result = make(Kind::kDict, token.offset);
      while (!accept("}")) {
        if (!result->parts.empty()) expect(",");
        if (accept("}")) break;
        result->parts.push_back(expression());
        expect(":");
        result->parts.push_back(expression());
      }
      return result;
    }
    fail(fmt::format("expected an expression, found {}", found()));
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    for (;;) {
      const size_t offset = now().offset;
      if (accept(".")) {
        if (now().kind == TokenKind::kInteger) {
          auto index = make(Kind::kLiteral, offset);
          index->value = Value(take().integer);
          value = make(Kind::kItem, offset, std::move(value), std::move(index));
        } else {
          value = make(Kind::kAttribute, offset, std::move(value), nullptr, expect_name("a name after '.'"));
        }
      } else if (accept("[")) {
        value = subscript(std::move(value), offset);
      } else if (is_operator("(")) {
        value = call(std::move(value), offset);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr value, size_t offset) {
    std::vector<ExpressionPtr> parts;
    bool slice = false;
    ExpressionPtr part = is_operator(":") ? nullptr : expression();
    while (accept(":")) {
      slice = true;
      parts.push_back(std::move(part));
      part = is_operator(":") || is_operator("]") ? nullptr : expression();
    }
    parts.push_back(std::move(part));
    if (is_operator(",")) fail("several indices are not supported");
    if (parts.size() > 3) fail("a slice has at most three parts");
    expect("]");
    auto result = make(slice ? Kind::kSlice : Kind::kItem, offset, std::move(value), nullptr);
    for (auto& each : parts) result->parts.push_back(std::move(each));
    if (slice) result->parts.resize(4);
    return result;
  }

  ExpressionPtr call(ExpressionPtr callee, size_t offset) {
    auto result = make(Kind::kCall, offset, std::move(callee), nullptr);
    arguments(*result);
    return result;
  }

  void arguments(Expression& result) {
    expect("(");
    bool first = true;
    while (!accept(")")) {
      if (!std::exchange(first, false)) {
        expect(",");
        if (accept(")")) break;
      }
      if (is_operator("*")) fail("'*' in calls is not supported");
      if (accept("**")) {  // the last argument
        result.named.emplace_back("**", expression());
        (void)accept(",");
        expect(")");
        return;
      }
      if (now().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator && ahead().text == "=") {
        std::string name = take().text;
        ++at_;
        result.named.emplace_back(std::move(name), expression());
      } else {
        if (!result.named.empty()) fail("an argument without a name after one with a name");
        result.parts.push_back(expression());
      }
    }
  }

  /// Filters, tests and calls after a value. `begun`: a filter's name comes first, without '|'.
  ExpressionPtr filters(ExpressionPtr value, bool begun) {
    for (;;) {
      const size_t offset = now().offset;
      if (begun || accept("|")) {
        begun = false;
        std::string name = expect_name("the name of a filter");
        while (accept(".")) name += "." + expect_name("the name of a filter");
        value = make(Kind::kFilter, offset, std::move(value), nullptr, std::move(name));
        if (is_operator("(")) arguments(*value);
      } else if (accept_name("is")) {
        value = test(std::move(value), offset);
      } else if (is_operator("(")) {
        value = call(std::move(value), offset);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr test(ExpressionPtr value, size_t offset) {
    const bool negated = accept_name("not");
    auto result = make(Kind::kTest, offset, std::move(value), nullptr, expect_name("the name of a test"));
    if (is_operator("(")) {
      arguments(*result);
    } else {
      const TokenKind kind = now().kind;
      const bool starts = kind == TokenKind::kText || kind == TokenKind::kInteger || kind == TokenKind::kFloat ||
                          is_operator("[") || is_operator("{") ||
                          (kind == TokenKind::kName && !is_name("else") && !is_name("or") && !is_name("and") &&
                           !is_name("is") && !is_name("if") && !is_name("in") && !is_name("not"));
      if (starts) result->parts.push_back(postfix(primary()));
    }
    return negated ? make(Kind::kNot, offset, std::move(result), nullptr) : std::move(result);
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace trireme::jinja

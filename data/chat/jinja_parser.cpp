#include "data/chat/jinja_syntax.h"

#include "data/chat/jinja_expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace trireme::jinja {
namespace {

class Parser : ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body run() { return statements({}, 0); }

 private:
  using Ends = std::vector<std::string_view>;

  /// Statements up to a block that begins with one of `ends`, whose name is taken; all of the template if there are
  /// none.
  Body statements(const Ends& ends, size_t opened_at) {
    const Nesting nesting(*this);
    Body body;
    for (;;) {
      if (now().kind == TokenKind::kEnd) {
        if (ends.empty()) return body;
        throw TemplateError{opened_at, fmt::format("this block has no end: {{% {} %}} is missing", ends.back())};
      }
      if (now().kind == TokenKind::kData) {
        Statement text;
        text.kind = Statement::Kind::kText;
        text.offset = now().offset;
        text.text = take().text;
        body.push_back(std::move(text));
      } else if (now().kind == TokenKind::kVariableBegin) {
        Statement print;
        print.kind = Statement::Kind::kPrint;
        print.offset = take().offset;
        print.expressions.push_back(tuple());
        if (now().kind != TokenKind::kVariableEnd) fail(fmt::format("expected the end '}}}}', found {}", found()));
        ++at_;
        body.push_back(std::move(print));
      } else {
        if (now().kind != TokenKind::kBlockBegin) fail(fmt::format("found {}", found()));
        ++at_;
        if (now().kind != TokenKind::kName) fail(fmt::format("expected the name of a statement, found {}", found()));
        if (std::find(ends.begin(), ends.end(), now().text) != ends.end()) return body;
        body.push_back(statement());
      }
    }
  }

  Statement statement() {
    Statement result;
    result.offset = now().offset;
    const std::string name = take().text;
    if (name == "if") return if_statement(std::move(result));
    if (name == "for") return for_statement(std::move(result));
    if (name == "set") return set_statement(std::move(result));
    if (name == "macro") return macro(std::move(result));
    if (name == "generation") {
      result.kind = Statement::Kind::kGeneration;
      return with_body(std::move(result), "endgeneration");
    }
    if (name == "filter") {
      result.kind = Statement::Kind::kFilterBlock;
      auto input = make(Kind::kLiteral, result.offset);
      result.expressions.push_back(filters(std::move(input), true));
      return with_body(std::move(result), "endfilter");
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) throw TemplateError{result.offset, fmt::format("'{}' outside of a for loop", name)};
      result.kind = name == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue;
      end_block();
      return result;
    }
    static constexpr std::array<std::string_view, 9> kOther = {"include", "import", "from",       "extends", "block",
                                                               "call",    "with",   "autoescape", "print"};
    throw TemplateError{result.offset, std::find(kOther.begin(), kOther.end(), name) != kOther.end()
                                           ? fmt::format("the statement '{}' is not supported", name)
                                           : fmt::format("'{}' is no statement that belongs here", name)};
  }

  /// The rest of the block that begins, the statements up to `end`, and that block.
  Statement with_body(Statement result, std::string_view end) {
    end_block();
    result.bodies.push_back(statements({end}, result.offset));
    ++at_;
    end_block();
    return result;
  }

  Statement if_statement(Statement result) {
    result.kind = Statement::Kind::kIf;
    for (;;) {
      result.expressions.push_back(tuple(false));
      end_block();
      result.bodies.push_back(statements({"elif", "else", "endif"}, result.offset));
      if (accept_name("elif")) continue;
      if (accept_name("else")) return with_body(std::move(result), "endif");
      ++at_;
      end_block();
      return result;
    }
  }

  Statement for_statement(Statement result) {
    result.kind = Statement::Kind::kFor;
    result.target = target(false);
    if (!accept_name("in")) fail(fmt::format("expected 'in', found {}", found()));
    result.expressions.push_back(tuple(false));
    result.expressions.push_back(accept_name("if") ? expression() : nullptr);
    if (is_name("recursive")) fail("recursive loops are not supported");
    end_block();
    ++loops_;
    result.bodies.push_back(statements({"else", "endfor"}, result.offset));
    --loops_;
    if (accept_name("else")) return with_body(std::move(result), "endfor");
    ++at_;
    end_block();
    return result;
  }

  Statement set_statement(Statement result) {
    result.target = target(true);
    if (accept("=")) {
      result.kind = Statement::Kind::kSet;
      result.expressions.push_back(tuple());
      end_block();
      return result;
    }
    result.kind = Statement::Kind::kSetBlock;
    result.expressions.push_back(is_operator("|") ? filters(make(Kind::kLiteral, result.offset), false) : nullptr);
    return with_body(std::move(result), "endset");
  }

  Statement macro(Statement result) {
    result.kind = Statement::Kind::kMacro;
    result.text = expect_name("the name of the macro");
    expect("(");
    while (!accept(")")) {
      if (!result.parameters.empty()) expect(",");
      Parameter parameter;
      parameter.name = expect_name("the name of a parameter");
      if (accept("="))
        parameter.fallback = expression();
      else if (!result.parameters.empty() && result.parameters.back().fallback != nullptr)
        fail("a parameter without a default after one with a default");
      result.parameters.push_back(std::move(parameter));
    }
    const int loops = std::exchange(loops_, 0);
    result = with_body(std::move(result), "endmacro");
    loops_ = loops;
    return result;
  }

  Target target(bool with_members) {
    Target result;
    const auto one = [&] {
      Target part;
      if (accept("(")) {
        part = target(false);
        expect(")");
        return part;
      }
      part.name = expect_name("a name to assign to");
      for (const char* word : {"true", "false", "none", "True", "False", "None"})
        if (part.name == word) fail(fmt::format("'{}' cannot be assigned to", word));
      if (with_members && accept(".")) part.member = expect_name("a member of a namespace");
      return part;
    };
    result = one();
    if (!is_operator(",")) return result;
    Target several;
    several.parts.push_back(std::move(result));
    while (accept(",") && now().kind == TokenKind::kName && !is_name("in")) several.parts.push_back(one());
    return several;
  }

  int loops_ = 0;  // for statements around this place
};

}  // namespace

Body parse_template(std::string_view source) { return Parser(source).run(); }

}  // namespace trireme::jinja

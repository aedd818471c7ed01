#include "data/chat/jinja_render.h"

#include "data/chat/jinja_builtins.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

namespace trireme::jinja {
namespace {

using Kind = Expression::Kind;

/// Variables of the template, a loop's round, a macro's call.
struct Scope {
  std::shared_ptr<Scope> parent;
  Dict variables;
};
using ScopePtr = std::shared_ptr<Scope>;

enum class Flow { kOn, kBreak, kContinue };

class Renderer {
 public:
  Renderer(const Dict& variables, bool for_training) : variables_(variables) {
    budget_.refuses_none = for_training;
    for (const auto& [name, value] : variables.items)
      if ((name == "messages" || name == "tools") && value.list() != nullptr)
        budget_.scale += static_cast<int64_t>(value.list()->items.size()) / 100;
    budget_.scale = std::min<int64_t>(budget_.scale, 100);
    const Value* messages = for_training ? variables.find("messages") : nullptr;
    for (size_t i = 0; messages != nullptr && messages->list() != nullptr && i < messages->list()->items.size(); ++i)
      numbers_[messages->list()->items[i].dict()] = static_cast<int64_t>(i);
    messages_ = numbers_.size();
    add("raise_exception", [](const Arguments& arguments) -> Value {
      throw ValueError{fmt::format("the template refuses the conversation: {}",
                                   to_text(*bind("raise_exception()", arguments, {"message"}, 1)[0]))};
    });
    add("strftime_now", strftime_now);
    add("range", [this](const Arguments& arguments) { return range(arguments, budget_); });
    add("dict", [](const Arguments& arguments) { return Value(merged("dict()", arguments)); });
    add("namespace", [this](const Arguments& arguments) {
      auto result = std::make_shared<Namespace>();
      result->members = merged("namespace()", arguments);
      budget_.list(result->members.items.size() + 2);
      for (const auto& [name, value] : result->members.items)
        if (name.starts_with('_'))
          throw ValueError{fmt::format("a namespace takes no name that begins with '_': {}", name)};
      namespaces_.push_back(result);
      return Value(std::move(result));
    });
  }
  /// Namespaces may hold each other, in rings and in chains of any length.
  ~Renderer() {
    for (const auto& each : namespaces_) each->members.items.clear();
  }
  Renderer(const Renderer&) = delete;
  Renderer& operator=(const Renderer&) = delete;

  Rendered run(const Body& body) {
    execute(body, std::make_shared<Scope>(), result_.text);
    if (rounds_.size() == messages_)
      for (const auto& [message, part] : rounds_) result_.messages.push_back(part);
    return std::move(result_);
  }

 private:
  /// Counts nested calls: templates must not exhaust the stack.
  struct Depth {
    explicit Depth(Renderer& renderer) : renderer_(renderer) {
      if (++renderer_.depth_ > 1500) throw ValueError{"the template recurses too deeply"};
    }
    ~Depth() { --renderer_.depth_; }
    Renderer& renderer_;
  };

  // ---- globals

  void add(const char* name, std::function<Value(const Arguments&)> call) {
    globals_.items.emplace_back(
        name, Value(std::make_shared<Function>(Function{fmt::format("{}()", name), std::move(call)})));
  }

  // ---- variables

  Value look_up(const std::string& name, const Scope* scope) const {
    for (; scope != nullptr; scope = scope->parent.get())
      if (const Value* found = scope->variables.find(name)) return *found;
    if (const Value* found = variables_.find(name)) return *found;
    if (const Value* found = globals_.find(name)) return *found;
    for (const char* other : {"cycler", "joiner", "lipsum", "self", "caller", "varargs", "kwargs"})
      if (name == other) throw ValueError{fmt::format("'{}' is not supported", name)};
    return Value::undefined(name);
  }

  void assign(const Target& target, Value value, Scope& scope) {
    if (!target.parts.empty()) {
      const auto items = items_of(value);
      if (items->items.size() != target.parts.size())
        throw ValueError{fmt::format("{} values for {} names", items->items.size(), target.parts.size())};
      for (size_t i = 0; i < target.parts.size(); ++i) assign(target.parts[i], items->items[i], scope);
    } else if (!target.member.empty()) {
      const Value object = look_up(target.name, &scope);
      if (object.names() == nullptr)
        throw ValueError{fmt::format("'{}' is no namespace: only its members can be set", target.name)};
      if (target.member.starts_with('_'))
        throw ValueError{fmt::format("a namespace takes no name that begins with '_': {}", target.member)};
      object.names()->members.set(target.member, std::move(value));
    } else {
      scope.variables.set(target.name, std::move(value));
    }
  }

  // ---- statements

  void write(std::string& out, std::string_view text) {
    budget_.text(text.size());
    if (out.size() + text.size() > kMaxText) throw ValueError{"the template writes more than 16 MiB"};
    out += text;
  }

  Flow execute(const Body& body, const ScopePtr& scope, std::string& out) {
    for (const Statement& statement : body) {
      try {
        const Depth depth(*this);
        budget_.step();
        const Flow flow = execute(statement, scope, out);
        if (flow != Flow::kOn) return flow;
      } catch (const ValueError& error) {
        throw TemplateError{statement.offset, error.what};
      }
    }
    return Flow::kOn;
  }

  Flow execute(const Statement& statement, const ScopePtr& scope, std::string& out) {
    switch (statement.kind) {
      case Statement::Kind::kText: write(out, statement.text); break;
      case Statement::Kind::kPrint: write(out, budget_.written(evaluate(*statement.expressions[0], scope))); break;
      case Statement::Kind::kIf:
        for (size_t i = 0; i < statement.bodies.size(); ++i)
          if (i >= statement.expressions.size() || evaluate(*statement.expressions[i], scope).truth())
            return execute(statement.bodies[i], scope, out);
        break;
      case Statement::Kind::kFor: execute_for(statement, scope, out); break;
      case Statement::Kind::kSet: assign(statement.target, evaluate(*statement.expressions[0], scope), *scope); break;
      case Statement::Kind::kSetBlock: assign(statement.target, filtered_body(statement, scope), *scope); break;
      case Statement::Kind::kFilterBlock: write(out, to_text(filtered_body(statement, scope))); break;
      case Statement::Kind::kMacro: scope->variables.set(statement.text, macro(statement, scope)); break;
      case Statement::Kind::kGeneration: {
        if (&out != &result_.text)
          throw ValueError{"a generation block inside a macro or another block is not supported"};
        std::string text;
        execute(statement.bodies[0], child(scope), text);
        const size_t begin = out.size();
        write(out, text);
        result_.generated.push_back({begin, out.size(), message_});
        break;
      }
      case Statement::Kind::kBreak: return Flow::kBreak;
      case Statement::Kind::kContinue: return Flow::kContinue;
    }
    return Flow::kOn;
  }

  static ScopePtr child(const ScopePtr& scope) {
    auto result = std::make_shared<Scope>();
    result->parent = scope;
    return result;
  }

  void execute_for(const Statement& statement, const ScopePtr& scope, std::string& out) {
    auto loop = std::make_shared<Loop>();
    loop->items = items_of(evaluate(*statement.expressions[0], scope));
    if (statement.expressions[1] != nullptr) {
      List kept{{}, false, loop->items->depth};
      for (const Value& each : loop->items->items) {
        budget_.step(Budget::kRoundSteps);
        const ScopePtr round = child(scope);
        assign(statement.target, each, *round);
        if (evaluate(*statement.expressions[1], round).truth()) kept.items.push_back(each);
      }
      budget_.list(kept.items.size());
      loop->items = std::make_shared<const List>(std::move(kept));
    }
    std::vector<Rendered::Part> parts;
    const bool outermost = &out == &result_.text && message_ < 0;
    for (; loop->index < loop->items->items.size(); ++loop->index) {
      budget_.step(Budget::kRoundSteps);
      const auto number = outermost ? numbers_.find(loop->items->items[loop->index].dict()) : numbers_.end();
      const bool is_message = number != numbers_.end() && number->first != nullptr;
      if (is_message) parts.push_back({out.size(), out.size(), message_ = number->second});
      const ScopePtr round = child(scope);
      round->variables.set("loop", Value(loop));
      assign(statement.target, loop->items->items[loop->index], *round);
      const Flow flow = execute(statement.bodies[0], round, out);
      if (is_message) {
        parts.back().end = out.size();
        message_ = -1;
      }
      if (flow == Flow::kBreak) break;
    }
    keep_rounds(parts);
    loop->changed.clear();  // which may hold the loop
    if (loop->items->items.empty() && statement.bodies.size() > 1) execute(statement.bodies[1], child(scope), out);
  }

  /// A template may go through the messages more than once: the loop that writes is the one. Loops that each write
  /// other messages (the earlier ones, the last ones) count as one.
  void keep_rounds(std::vector<Rendered::Part>& parts) {
    ++loops_;
    size_t written = 0, known = 0;
    bool again = false;
    for (Rendered::Part& part : parts) {
      part.loop = loops_;
      written += part.end - part.begin;
      const auto before = rounds_.find(part.message);
      again = again || (part.end > part.begin && before != rounds_.end() && before->second.end > before->second.begin);
    }
    if (again) {
      for (const auto& [message, part] : rounds_) known += part.end - part.begin;
      if (written <= known) return;
      rounds_.clear();
    }
    for (const Rendered::Part& part : parts)
      if (part.end > part.begin || !rounds_.contains(part.message)) rounds_[part.message] = part;
  }

  /// The text of a block through its filters.
  Value filtered_body(const Statement& statement, const ScopePtr& scope) {
    std::string text;
    execute(statement.bodies[0], child(scope), text);
    Value value(std::move(text));
    std::vector<const Expression*> chain;
    for (const Expression* each = statement.expressions[0].get(); each != nullptr && each->kind == Kind::kFilter;
         each = each->parts[0].get())
      chain.push_back(each);
    for (auto each = chain.rbegin(); each != chain.rend(); ++each)
      value = apply_filter((*each)->name, value, arguments(**each, scope), budget_);
    return value;
  }

  Value macro(const Statement& statement, const ScopePtr& scope) {
    // The scope owns the macro: a strong pointer back would never be freed.
    const std::weak_ptr<Scope> defined_in = scope;
    return Value(std::make_shared<Function>(Function{
        fmt::format("{}()", statement.text), [this, &statement, defined_in](const Arguments& given) {
          const Depth depth(*this);
          const ScopePtr outer = defined_in.lock();
          if (outer == nullptr)
            throw ValueError{fmt::format("the macro '{}' is called after its scope has ended", statement.text)};
          if (given.positional.size() > statement.parameters.size())
            throw ValueError{fmt::format("the macro '{}' takes {} arguments, not {}", statement.text,
                                         statement.parameters.size(), given.positional.size())};
          const ScopePtr inner = child(outer);
          for (size_t i = 0; i < statement.parameters.size(); ++i) {
            const Parameter& parameter = statement.parameters[i];
            const auto named = std::find_if(given.named.begin(), given.named.end(),
                                            [&](const auto& each) { return each.first == parameter.name; });
            Value value = i < given.positional.size()     ? given.positional[i]
                          : named != given.named.end()    ? named->second
                          : parameter.fallback != nullptr ? evaluate(*parameter.fallback, inner)
                                                          : Value::undefined(parameter.name);
            inner->variables.set(parameter.name, std::move(value));
          }
          for (const auto& [name, value] : given.named)
            if (std::none_of(statement.parameters.begin(), statement.parameters.end(),
                             [&, &key = name](const Parameter& each) { return each.name == key; }))
              throw ValueError{fmt::format("the macro '{}' has no parameter '{}'", statement.text, name)};
          std::string text;
          execute(statement.bodies[0], inner, text);
          return Value(std::move(text));
        }}));
  }

  // ---- expressions

  Arguments arguments(const Expression& expression, const ScopePtr& scope) {
    Arguments result;
    for (size_t i = 1; i < expression.parts.size(); ++i)
      result.positional.push_back(evaluate(*expression.parts[i], scope));
    for (const auto& [name, value] : expression.named) {
      const Value argument = evaluate(*value, scope);
      if (name != "**") {
        result.named.emplace_back(name, argument);
        continue;
      }
      if (argument.dict() == nullptr)
        throw ValueError{fmt::format("an argument after ** is of type {}, not a dict", argument.type_name())};
      for (const auto& [key, each] : argument.dict()->items) {
        if (std::any_of(result.named.begin(), result.named.end(),
                        [&name = key](const auto& other) { return other.first == name; }))
          throw ValueError{fmt::format("a call gives the argument '{}' twice", key)};
        result.named.emplace_back(key, each);
      }
    }
    return result;
  }

  Value evaluate(const Expression& expression, const ScopePtr& scope) {
    try {
      const Depth depth(*this);
      budget_.step();
      return compute(expression, scope);
    } catch (const ValueError& error) {
      throw TemplateError{expression.offset, error.what};
    }
  }

  Value compute(const Expression& expression, const ScopePtr& scope) {
    const auto part = [&](size_t i) { return evaluate(*expression.parts[i], scope); };
    switch (expression.kind) {
      case Kind::kLiteral: return expression.value;
      case Kind::kName: return look_up(expression.name, scope.get());
      case Kind::kList:
      case Kind::kTuple: {
        List list{{}, expression.kind == Kind::kTuple};
        for (size_t i = 0; i < expression.parts.size(); ++i) list.items.push_back(part(i));
        budget_.list(list.items.size());
        return Value(std::move(list));
      }
      case Kind::kDict: {
        Dict dict;
        for (size_t i = 0; i < expression.parts.size(); i += 2) {
          budget_.step(static_cast<int64_t>(i) / 32);
          dict.set(text_of("a key of a dict", part(i)), part(i + 1));
        }
        budget_.list(2 * dict.items.size());
        return Value(std::move(dict));
      }
      case Kind::kAttribute: return attribute(part(0), expression.name, budget_);
      case Kind::kItem: {
        const Value object = part(0);
        budget_.step(object.text() != nullptr ? work_of(object) : 0);
        return item(object, part(1), budget_);
      }
      case Kind::kSlice: return sliced(expression, scope);
      case Kind::kCall: {
        const Value callee = part(0);
        if (const auto* missing = callee.as<Undefined>())
          throw ValueError{fmt::format("'{}' is undefined, and is called", missing->name)};
        if (callee.function() == nullptr)
          throw ValueError{fmt::format("a value of type {} is called", callee.type_name())};
        return callee.function()->call(arguments(expression, scope));
      }
      case Kind::kFilter: return apply_filter(expression.name, part(0), arguments(expression, scope), budget_);
      case Kind::kTest: {
        const Value value = part(0);
        const Arguments given = arguments(expression, scope);
        if (value.text() != nullptr || !given.positional.empty()) budget_.step(work_of(value));
        for (const Value& each : given.positional) budget_.step(work_of(each) + search_work(value, each));
        return Value(apply_test(expression.name, value, given));
      }
      case Kind::kNot: return Value(!part(0).truth());
      case Kind::kUnary: return signed_number(expression.name, part(0));
      case Kind::kBinary: return arithmetic(expression.name, part(0), part(1), budget_);
      case Kind::kConcat: {
        std::string text;
        for (size_t i = 0; i < expression.parts.size() && text.size() <= kMaxText; ++i)
          text += budget_.written(part(i));
        budget_.text(text.size());
        return Value(std::move(text));
      }
      case Kind::kAnd: {
        Value left = part(0);
        return left.truth() ? part(1) : left;
      }
      case Kind::kOr: {
        Value left = part(0);
        return left.truth() ? left : part(1);
      }
      case Kind::kCompare: return compared(expression, scope);
      case Kind::kCondition:
        if (part(1).truth()) return part(0);
        return expression.parts[2] != nullptr ? part(2) : Value::undefined("the else of an inline if");
    }
    throw ValueError{"an expression of unknown kind"};
  }

  static Value signed_number(const std::string& sign, const Value& value) {
    if (!value.is_number()) throw ValueError{fmt::format("'{}' of a {}", sign, value.type_name())};
    if (value.is_integer()) return sign == "-" ? negative(value) : Value(value.integer());
    return Value(sign == "-" ? -value.real() : value.real());
  }

  Value sliced(const Expression& expression, const ScopePtr& scope) {
    const Value object = evaluate(*expression.parts[0], scope);
    std::array<Value, 3> bounds;
    std::array<const Value*, 3> given{};
    for (size_t i = 0; i < 3; ++i) {
      if (expression.parts[i + 1] == nullptr) continue;
      bounds[i] = evaluate(*expression.parts[i + 1], scope);
      given[i] = &bounds[i];
    }
    if (object.text() != nullptr && given[2] == nullptr) {
      budget_.step(work_of(object));
      budget_.text(object.text()->size());
    } else {
      budget_.list(object.list() != nullptr || object.text() != nullptr ? length_of(object) : 0);
    }
    return slice(object, given[0], given[1], given[2]);
  }

  Value compared(const Expression& expression, const ScopePtr& scope) {
    Value left = evaluate(*expression.parts[0], scope);
    for (size_t i = 0; i < expression.operators.size(); ++i) {
      Value right = evaluate(*expression.parts[i + 1], scope);
      budget_.step(work_of(left) + work_of(right) +
                   (expression.operators[i].ends_with("in") ? search_work(left, right) : 0));
      const std::string& op = expression.operators[i];
      const auto defined = [&] {
        for (const Value* each : {&left, &right})
          if (const auto* missing = each->as<Undefined>())
            throw ValueError{fmt::format("'{}' is undefined", missing->name)};
      };
      bool holds = false;
      if (op == "==")
        holds = equal(left, right);
      else if (op == "!=")
        holds = !equal(left, right);
      else if (op == "in")
        holds = contains(left, right);
      else if (op == "not in")
        holds = !contains(left, right);
      else {
        defined();
        if (op == "<")
          holds = less(left, right);
        else if (op == ">")
          holds = less(right, left);
        else if (op == "<=")
          holds = less(left, right) || equal(left, right);
        else
          holds = less(right, left) || equal(left, right);
      }
      if (!holds) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  const Dict& variables_;
  std::unordered_map<const Dict*, int64_t> numbers_;  // of the messages
  size_t messages_ = 0;
  std::map<int64_t, Rendered::Part> rounds_;  // by message
  int loops_ = 0;
  int64_t message_ = -1;  // whose round is executed
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  Dict globals_;
  Budget budget_;
  int depth_ = 0;
  Rendered result_;
};

}  // namespace

Rendered render(const Body& body, const Dict& variables, bool for_training) {
  return Renderer(variables, for_training).run(body);
}

}  // namespace trireme::jinja

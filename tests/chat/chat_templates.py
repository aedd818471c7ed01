"""Chat templates of the shapes that published models have, written for the tests, and templates of one construct each."""
from pathlib import Path

# models/decoder/chat_templates: name -> text
SHIPPED = {path.stem: path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parents[2] / "models/decoder/chat_templates").glob("*.jinja"))}

CHATML = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}{% set turns = messages %}{% set system = false %}{% endif %}{% for turn in turns %}{% if (turn['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('user and assistant must take turns') }}{% endif %}{% if loop.index0 == 0 and system != false %}{% set text = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + turn['content'] %}{% else %}{% set text = turn['content'] %}{% endif %}{% if turn['role'] == 'user' %}{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}{% elif turn['role'] == 'assistant' %}{{ ' ' + text.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA3 = """{% set turns = messages %}{% for turn in turns %}{% set text = '<|start_header_id|>' + turn['role'] + '<|end_header_id|>\\n\\n' + turn['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

LLAMA31 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_first is defined %}
    {%- set tools_first = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message is written in every case. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system }}
{{- "<|eot_id|>" }}
{%- if tools_first and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("no user message for the tools") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("only one call at once") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}" }}
        {%- for name, value in call.arguments | items %}
            {{- name + '="' ~ value ~ '"' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- endif %}
        {%- endfor %}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN2 = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

QWEN25 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

MISTRAL1 = """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('the roles must take turns') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}{% else %}{{ raise_exception('no other roles') }}{% endif %}{% endfor %}"""

MISTRAL3 = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("the roles must take turns") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
            {%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
            {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("ids have length 9") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' ~ message.tool_call_id ~ '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("no other roles") }}
    {%- endif %}
{%- endfor %}
"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
"""

MODELS = {"llama2": LLAMA2, "llama3": LLAMA3, "llama3.1": LLAMA31, "qwen2": QWEN2, "qwen2.5": QWEN25, "mistral-v0.1": MISTRAL1, "mistral-v0.3": MISTRAL3,
          "zephyr": ZEPHYR, "chatml": CHATML}

GENERATION = """{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else %}
{{- message['content'] + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}"""

# Each is rendered with the messages " Hello " and "Grüße" and one tool; the text equals that of Jinja.
CONSTRUCTS = [
    # white space
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a  {%- if true -%}  b  {%- endif -%}  c", "  {%+ if true %}x{% endif +%}\n y", "x {# a comment #}\n y",
    "  {# c #}\nz\n\n", "{% raw %}{{ x }} {% if %}{% endraw %}\nz", "a {%- raw -%}  {{ }}  {%- endraw -%}  b", "a\r\nb\rc\r\n",
    "{{ '}}' }}{{ {'a': {'b': 1}}.a.b }}", "  {{- 1 }}  \n{{ 2 -}}  \n x", "\t {% set a = 1 %} \n{{a}}", "a\u00a0{%- set x = 1 %}b\u3000{{- x }}", "{{ 1 }}\n\n",
    "x{#- a -#}  y", "{% if true %}\n\n{% endif %}{", "{ {{ 1 }} } %}",
    # literals and text
    "{{ 'a\\tb\\x41\\u00e9\\'\\q\\\\' }}{{ \"it's\" ~ 'a' 'b' }}", "{{ 1_000 }} {{ 1.5e3 }} {{ 1e20 }} {{ 0.00001 }} {{ 1e16 }} {{ 123456789012.5 }} {{ 2.0 }}",
    "{{ true }} {{ False }} {{ none }} {{ None }}", "{{ [1, 'a', \"it's\", none, 2.5, [true]] }} {{ (1,) }} {{ () }} {{ {'a': 1, 'b': ['x\\n']} }} {{ 1, 2 }}",
    "{{ ['Grüße \\u200b \\x01 \\U0001f600'] }}", "{{ [1,2,] }}{{ {'a':1,} }}{{ (1,2,) }}",
    # operators
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}",
    "{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ -2 ** 2 }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ 2 * [0] }}", "{{ 1 ~ 2 + 3 ~ none }}",
    "{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ 1 != '1' }} {{ [1] == (1,) }} {{ {'a': 1} == {'a': 1.0} }} {{ 3 > 2 >= 2 }}",
    "{{ 'a' in 'abc' }} {{ 2 in [1, 2] }} {{ 'x' not in {'x': 1} }} {{ 1 in missing }} {{ not 1 in [1] }}",
    "{{ '' or 'b' }} {{ 'a' and 'b' }} {{ not '' }} {{ 0 or none }} {{ missing or 'c' }}", "{{ 'a' if 1 else 'b' }}{{ 'x' if 0 }}{{ 'y' if 0 else 'z' if 0 else 'w' }}",
    # members
    "{{ messages[0].role }}{{ messages[-1]['content'] }}{{ messages[5] }}{{ messages[0].missing }}{{ messages.0.role }}",
    "{{ 'abc'[1] }}{{ 'Grüße'[2:4] }}{{ 'abc'[::-1] }}{{ [1,2,3][1:] }}{{ [1,2,3,4][-3:-1] }}{{ 'abc'[10:] }}{{ [1,2,3][::-2] }}",
    "{{ messages[0].items() | list }}{{ messages[0].keys() | list }}{{ messages[0].get('role') }}{{ messages[0].get('x') }}{{ messages[0].get('x', 1) }}",
    "{{ {'items': 1}['items'] }}{{ {'get': 2}.x is defined }}",
    # methods
    "{{ ' a b '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ ' a'.lstrip() }}|{{ 'a '.rstrip() }}|{{ 'abc'.rstrip('bc') }}",
    "{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a b c'.split(' ', 1) }}{{ 'a b c '.split(none, 1) }}{{ 'a-b-c'.rsplit('-', 1) }}{{ ' a b c '.rsplit(maxsplit=1) }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abc'.replace('b', 'xx') }}{{ 'aaa'.replace('a', 'b', 2) }}{{ 'ab'.replace('', '-') }}",
    "{{ 'a b'.upper() }}{{ 'AB'.lower() }}{{ 'ab cd'.title() }}{{ 'aB'.capitalize() }}{{ ', '.join(['a', 'b']) }}",
    "{{ 'abc'.find('c') }}{{ 'abc'.find('x') }}{{ 'Grüße'.index('ß') }}{{ 'aXbX'.rfind('X') }}{{ 'banana'.count('an') }}",
    "{{ 'a\\nb\\r\\nc'.splitlines() }}{{ 'a\\n'.splitlines(true) }}{{ 'abc'.removeprefix('a') }}{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}{{ '12'.isdigit() }}",
    "{{ [1,2,1].count(1) }}{{ [1,2].index(2) }}{{ ('</think>' in 'a</think>b') }}{{ 'a</think>b'.split('</think>')[-1].lstrip('\\n') }}",
    # filters
    "{{ ' a ' | trim }}|{{ 'xax' | trim('x') }}|{{ messages[0].content | trim | length }}", "{{ tools | tojson }}", "{{ tools | tojson(indent=2) }}",
    "{{ 'é\\n\\x7f\\u2028' | tojson }}{{ '\\x1f\\x7fé\\U0001f600' | tojson(ensure_ascii=true) }}{{ [] | tojson(indent=1) }}{{ {} | tojson }}{{ {'b': 1, 'a': 2.0} | tojson(sort_keys=true) }}{{ [1, 2] | tojson(separators=(',', ':')) }}",
    "{{ missing | default('d') }}{{ '' | default('d') }}{{ '' | default('d', true) }}{{ missing | d }}{{ none | default('x') }}",
    "{{ 'abc' | upper }}{{ 'ABC' | lower }}{{ 'heLLo wor-ld' | title }}{{ 'heLLo' | capitalize }}", "{{ 'Grüße' | length }}{{ messages | count }}{{ {} | length }}{{ missing | length }}",
    "{{ messages | map(attribute='role') | join('|') }}{{ ['a', 'b'] | map('upper') | list }}{{ [1, 2] | join }}{{ messages | join(', ', attribute='role') }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | rejectattr('role', 'in', ['user']) | map(attribute='content') | list }}{{ [0, 1, none] | select | list }}{{ [1, 2, 3] | reject('odd') | list }}",
    "{{ [3, 1, 2] | sort }}{{ ['b', 'A', 'c'] | sort }}{{ [1, 2] | reverse | list }}{{ 'abc' | reverse }}{{ [1, 1, 2] | unique | list }}{{ [1, 2] | sum }}{{ [3, 1] | min }}{{ [3, 1] | max }}{{ {'b': 1, 'a': 2} | dictsort }}",
    "{{ [1, 2] | first }}{{ [1, 2] | last }}{{ [] | first }}{{ 'abc' | list }}{{ 5 | string + 'a' }}{{ '42' | int + 1 }}{{ 'x' | int(7) }}{{ '1.5' | float }}{{ 3.9 | int }}{{ -3 | abs }}{{ 'a-b' | replace('-', '+') }}",
    "{{ 'a\\nb\\n\\nc' | indent }}{{ 'a\\nb' | indent(2, true) }}{{ {'a': 1} | items | list }}{{ '<' | safe }}",
    # generators, views, none, safe
    "{{ none | map('upper') | list }}{{ none | select | list }}{{ none | selectattr('a') | list }}{{ none | string }}{{ none | trim }}{{ none | int }}{{ none | default('x') }}{{ none | tojson }}",
    "{% if messages | selectattr('role', 'equalto', 'nobody') %}true{% endif %}{{ (messages | map(attribute='role')) is sequence }}{{ (messages | unique) is iterable }}{{ (messages | map(attribute='role'))[0] }}",
    "{{ messages[0].keys() }}{{ messages[0].values() }}{{ messages[0].items() }}{{ messages[0].keys() | length }}{{ messages[0].items() | last }}{% if {}.keys() %}x{% endif %}{{ messages[0].keys()[0] }}",
    "{{ ('<' | safe) ~ '<' }}{% set x = '<a>' | safe | string %}{{ x }}{{ x is string }}{{ 1 if x else 2 }}",
    # tests
    "{{ missing is defined }}{{ 1 is defined }}{{ missing is undefined }}{{ none is none }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is iterable }}{{ 1 is iterable }}{{ [] is sequence }}{{ 1 is number }}{{ true is number }}{{ true is integer }}{{ true is boolean }}{{ 1.5 is float }}",
    "{{ 1 is not none }}{{ not 1 is none }}{{ 3 is odd }}{{ 4 is even }}{{ 4 is divisibleby 2 }}{{ 1 is eq 1 }}{{ 1 is in [1] }}{{ 2 is gt(1) }}{{ true is true }}{{ 1 is false }}{{ range is callable }}{{ none is sameas none }}",
    # statements
    "{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.depth }};{% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }}{% endfor %}{% for c in 'héy' %}{{ c }}.{% endfor %}{% for k in {'x': 1} %}{{ k }}{% endfor %}{% for x in [] %}{% else %}none{% endfor %}{% for x in missing %}{% else %}e{% endfor %}",
    "{% for x in range(10) if x % 2 %}{% if x == 7 %}{% break %}{% endif %}{% if x == 3 %}{% continue %}{% endif %}{{ x }}{{ loop.last }}{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for x in range(5, 0, -2) %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(n=0, t='') %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% set ns.t = ns.t ~ i %}{% endfor %}{{ ns.n }}{{ ns.t }}{{ ns.missing is defined }}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}{% set t %} text {{ a }} {% endset %}[{{ t }}]{% set u | trim | upper %} x {% endset %}[{{ u }}]{% filter upper %}ab{% endfilter %}",
    "{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}{% if missing %}x{% endif %}{% if [] %}y{% elif none %}z{% else %}w{% endif %}",
    "{% macro m(a, b='d', c=none) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, c=2) }}{{ m('x', 'y') | upper }}{{ m() }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}", "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}",
    "{% macro m(a, b='d') %}<{{ a }}{{ b }}>{% endmacro %}{{ m(**{'a': 1}) }}{{ m(1, **{'b': 2}) }}{{ m(a=3, **{'b': 4},) }}{{ dict(**messages[0]) }}",
    "{{ dict(a=1, b='x') }}{{ dict(a=1).a }}{{ range(3) | list }}{{ strftime_now('%Y') }}", "{% for m in messages %}{% if loop.changed(m.role) %}{{ m.role }}{% endif %}{% endfor %}",
    "{{ bos_token }}{{ documents is none }}{{ add_generation_prompt }}",
]

# Work that grows with the conversation: a look back from each message, each tool added to one text; cuts of long texts.
LONG = [
    "{% for m in messages %}{% set ns = namespace(n=0) %}{% for j in range(loop.index0 - 1, -1, -1) %}{% if messages[j].role == 'user' %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{{ m.content }}{{ ns.n }}{% endfor %}",
    "{% set ns = namespace(t='') %}{% for tool in tools %}{% set ns.t = ns.t + (tool | tojson) %}{% set ns.t = ns.t + ', ' %}{% endfor %}{{ ns.t }}",
    "{% set t = 'é' * 2000000 %}{% for i in range(9) %}{{ t[:4] }}{{ t[-i:] }}{{ t[9:4] }}{{ t[1::999999] }}{% endfor %}",
]

# (template, part of the message): never a text.
DOUBLED = "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}"
REFUSED = [
    ("{% set x = messages | map(attribute='role') %}{{ x | list }}{{ x | list }}", "for a second time is not supported"), ("{{ (messages | select) | length }}", "has no length"),
    ("ab\n  {{ 'x' | wordcount }}", "template:2:"), ("{{ 'x' | wordcount }}", "'wordcount' is not supported"), ("{{ 'é' | upper }}", "not supported"),
    ("{{ 1 is weird }}", "'weird' is not supported"), ("{% include 'x' %}", "'include' is not supported"),
    ("{{ raise_exception('no') }}", "the template refuses the conversation: no"), ("{{ missing.x }}", "'missing' is undefined"),
    ("{{ missing + 'a' }}", "'missing' is undefined"), ("{{ 'a' + 1 }}", "not possible"), ("{% if %}{% endif %}", "expected an expression"),
    ("{% for x in y %}", "{% endfor %} is missing"), ("{{ 'abc", "has no end"), ("{{ x", "has no end"), ("{# x", "has no end"), ("{% endif %}", "belongs here"),
    ("{{ [].append(1) }}", "not supported"), ("{{ 'a'.format() }}", "not supported"), ("{{ ('<' | safe) + '<' }}", "not supported"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recurses too deeply"),
    ("{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", "too many steps"),
    ("{% set ns = namespace(t='aaaaaaaa') %}{% for i in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}", "16 MiB"), ("{{ 'a' * 999999999 }}", "too large"),
    ("{{ range(999999999) }}", "100,000"), ("{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}", "nested deeper"),
    ("{% set ns = namespace(t='a' * 1000000, l=[]) %}{% for i in range(99999) %}{% set ns.l = ns.l + [ns.t ~ i] %}{% endfor %}", "256 MiB"),
    ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested deeper"), ("{{ " + "-" * 5000 + "1 }}", "nested deeper"),
    ("{{ a" + ".b" * 5000 + " }}", "more than 500 steps"), ("{% if 1 %}" * 5000 + "{% endif %}" * 5000, "nested deeper"),
    ("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "not supported"), ("{{ 9223372036854775807 + 1 }}", "too large"),
    (DOUBLED + "{{ ns.a }}", "16 MiB"), (DOUBLED + "{{ ns.a | tojson }}", "16 MiB"), (DOUBLED + "{{ {'a': ns.a} }}", "16 MiB"), (DOUBLED + "{{ ns.a == ns.b }}", "too many steps"),
    ("{{ [[[[[1]]]]] | tojson(indent='x' * 9000000) }}", "16 MiB"), ("{% set t = 'x' * 9000000 %}{{ t ~ t ~ t }}", "16 MiB"),
    ("{% set t = 'x' * 16000000 %}{% for i in range(99999) %}{% if t | length == i %}{% endif %}{% endfor %}", "too many steps"),
    ("{% set t = range(99999) %}{% for i in range(99999) %}{% if -1 in t %}{% endif %}{% endfor %}", "too many steps"),
    ("{{ ('a' * 8000000).rfind('a' * 4000000 ~ 'b') }}", "too many steps"), ("{{ ('a' * 4000000 ~ 'b') in 'a' * 8000000 }}", "too many steps"),
    ("{{ {" + ", ".join(f"'{i}': 1" for i in range(50000)) + "} }}", "too many steps"),
    ("{{ -('-9223372036854775808' | int) }}", "too large"), ("{{ '-9223372036854775808' | int | abs }}", "too large"),
    ("{{ 1 // 0 }}", "division by zero"), ("{{ {1: 'a'} }}", "a key of a dict"), ("{{ dict(*[1]) }}", "'*' in calls is not supported"),
    ("{{ dict(a=1, **{'a': 2}) }}", "twice"), ("{{ dict(**[1]) }}", "not a dict"), ("{{ 99999999999999999999 }}", "too large"),
]

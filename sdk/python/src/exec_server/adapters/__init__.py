"""Environments as the execution back ends of agent frameworks.

Each module imports its framework, which this package does not depend on:

- :mod:`exec_server.adapters.deepagents`: LangChain Deep Agents
- :mod:`exec_server.adapters.openai_agents`: sandboxes of the OpenAI Agents SDK
- :mod:`exec_server.adapters.anthropic_tools`: tools for Anthropic's environment workers
"""
